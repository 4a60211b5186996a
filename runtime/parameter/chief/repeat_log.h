// When to say again that somebody who is waited for does not answer: after a while, and then now
// and then. One thread, or under its owner's lock.
#pragma once

#include <chrono>
#include <map>

#include "runtime/base/clock.h"

namespace meshtrain::parameter {

class RepeatLog {
 public:
  static constexpr Duration kFirst = std::chrono::seconds(5);
  static constexpr Duration kAgain = std::chrono::seconds(30);

  // `who` did not answer at `now` (monotonic): whether to say so.
  bool Due(int who, Duration now) {
    const auto [it, first] = next_.emplace(who, now + kFirst);
    if (first || now < it->second) return false;
    it->second = now + kAgain;
    return true;
  }
  void Answered(int who) { next_.erase(who); }

 private:
  std::map<int, Duration> next_;
};

}  // namespace meshtrain::parameter
