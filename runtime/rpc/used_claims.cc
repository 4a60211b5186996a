#include "runtime/rpc/used_claims.h"

#include <algorithm>

namespace meshtrain::rpc {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr int64_t kSlackMs = duration_cast<milliseconds>(kClockSlack).count();
// How often callers are looked through for those that can be forgotten.
constexpr int64_t kForgetEveryMs = 60'000;

Status Refuse(const CallClaim& claim, const std::string& got) {
  return Status(StatusCode::kUnauthenticated,
                "the caller's claim: expected one that no call has used, got: number " +
                    std::to_string(claim.number) + got);
}

}  // namespace

Status UsedClaims::Use(const CallClaim& claim, TimePoint now) {
  const int64_t now_ms = duration_cast<milliseconds>(now.time_since_epoch()).count();
  auto at = callers_.find(claim.caller);
  if (now_ms >= forget_at_ms_ || (at == callers_.end() && callers_.size() >= kMostCallers)) {
    Forget(now_ms);
    at = callers_.find(claim.caller);
  }
  if (at == callers_.end()) {
    if (callers_.size() >= kMostCallers) {
      return Unavailable("expected at most " + std::to_string(kMostCallers) +
                         " callers within minutes, got: one more");
    }
    at = callers_.emplace(claim.caller, Seen{}).first;
  }
  Seen& seen = at->second;
  if (claim.number == 0) return Refuse(claim, "");
  if (claim.number > seen.highest) {
    if (claim.number - seen.highest >= kWindow) {
      seen.numbers.reset();
    } else {
      for (uint64_t n = seen.highest + 1; n <= claim.number; ++n) seen.numbers.reset(n % kWindow);
    }
    seen.highest = claim.number;
  } else if (seen.highest - claim.number >= kWindow) {
    return Refuse(claim, ", far below " + std::to_string(seen.highest));
  } else if (seen.numbers.test(claim.number % kWindow)) {
    return Refuse(claim, ", which came before");
  }
  seen.numbers.set(claim.number % kWindow);
  seen.newest_ms = std::max(seen.newest_ms, claim.time_ms);
  return OkStatus();
}

void UsedClaims::Forget(int64_t now_ms) {
  std::erase_if(callers_,
                [&](const auto& caller) { return caller.second.newest_ms < now_ms - kSlackMs; });
  forget_at_ms_ = now_ms + kForgetEveryMs;
}

}  // namespace meshtrain::rpc
