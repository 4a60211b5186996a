// Which claims a server has seen, so that none is good for a second call. Pure: the clock comes in.
//
// A caller's calls are numbered, so what is kept of a caller has one size however many calls it
// makes: its highest number, and which of the kWindow numbers up to it were seen (RFC 4303 section
// 3.4.3 does so for packets). A number below these is refused, seen or not: a call is not overtaken
// by so many of its own caller's. A caller is forgotten once the newest of its claims is too old
// for CheckClaim, which refuses them all from then on.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/rpc/security.h"

namespace meshtrain::rpc {

class UsedClaims {
 public:
  static constexpr uint64_t kWindow = 1024;
  static constexpr size_t kMostCallers = 65'536;

  // Notes a claim that CheckClaim found good at `now`. Errors: kUnauthenticated (seen before, or
  // its number lies below the window); kUnavailable (kMostCallers are known already).
  Status Use(const CallClaim& claim, TimePoint now);
  size_t callers() const { return callers_.size(); }

 private:
  struct Seen {
    uint64_t highest = 0;
    std::bitset<kWindow> numbers;  // highest - kWindow + 1 to highest, each at number % kWindow
    int64_t newest_ms = 0;
  };
  void Forget(int64_t now_ms);

  std::map<std::string, Seen> callers_;
  int64_t forget_at_ms_ = 0;
};

}  // namespace meshtrain::rpc
