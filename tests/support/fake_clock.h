// A clock that moves only when told, or when somebody sleeps on it: SleepFor returns at once with
// the time passed. Thread-safe.
#pragma once

#include <atomic>
#include <functional>

#include "runtime/base/clock.h"

namespace meshtrain::testing {

class FakeClock : public Clock {
 public:
  explicit FakeClock(TimePoint start = TimePoint(std::chrono::seconds(1'767'323'045)))
      : start_(start) {}

  TimePoint Now() const override { return start_ + Monotonic(); }
  Duration Monotonic() const override { return Duration(passed_.load()); }
  bool SleepFor(Duration how_long, std::stop_token stop) override {
    if (stop.stop_requested()) return false;
    Advance(how_long);
    if (on_sleep) on_sleep(how_long);
    return !stop.stop_requested();
  }
  void Advance(Duration how_long) { passed_ += how_long.count(); }

  // Called after each sleep: where a test changes the world. Set it before threads start.
  std::function<void(Duration)> on_sleep;

 private:
  const TimePoint start_;
  std::atomic<int64_t> passed_{0};
};

// On a clock that stands still no deadline comes, however slow the machine is.
inline Clock& StillClock() {
  static FakeClock clock;
  return clock;
}

}  // namespace meshtrain::testing
