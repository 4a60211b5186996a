#include "operator/control/repeat_guard.h"

#include <algorithm>

namespace meshtrain::control {
namespace {

constexpr Duration kShortest = std::chrono::seconds(1);
constexpr Duration kLongest = std::chrono::seconds(60);
constexpr size_t kFew = 64;

}  // namespace

std::optional<RepeatGuard::Last> RepeatGuard::Before(const std::string& job,
                                                     const std::string& write,
                                                     int64_t change) const {
  MutexLock lock(mutex_);
  const auto of_job = sent_.find(job);
  if (of_job == sent_.end()) return std::nullopt;
  const auto it = of_job->second.writes.find(write);
  if (it == of_job->second.writes.end()) return std::nullopt;
  const Sent& sent = it->second;
  const Duration since = clock_.Monotonic() - sent.at;
  Duration wait = kShortest;
  if (change == sent.change) {
    if (sent.status.ok()) return Last{.status = sent.status};
    wait = std::min(kLongest, kShortest * (int64_t{1} << std::clamp(sent.refusals - 1, 0, 6)));
  }
  if (since >= wait) return std::nullopt;
  return Last{.status = sent.status, .may_in = wait - since};
}

void RepeatGuard::Answered(const std::string& job, const std::string& write, int64_t change,
                           const Status& status) {
  MutexLock lock(mutex_);
  auto& [writes, look_over_at] = sent_[job];
  const Duration now = clock_.Monotonic();
  if (writes.size() >= look_over_at) {
    // What may be sent again anyhow need not be remembered.
    std::erase_if(writes, [&](const auto& entry) {
      const Sent& sent = entry.second;
      return sent.change != change && now - sent.at >= kShortest;
    });
    look_over_at = 2 * writes.size() + kFew;
  }
  Sent& sent = writes[write];
  sent.refusals = status.ok() ? 0 : sent.refusals + 1;
  sent.change = change;
  sent.at = now;
  sent.status = status;
}

void RepeatGuard::Forget(const std::string& job) {
  MutexLock lock(mutex_);
  sent_.erase(job);
}

}  // namespace meshtrain::control
