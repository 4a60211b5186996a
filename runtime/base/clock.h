// Time as a parameter. Pure code takes a TimePoint; code that waits takes a Clock, so that tests
// need no sleeps.
#pragma once

#include <chrono>
#include <stop_token>

namespace meshtrain {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::sys_time<Duration>;  // wall time, UTC

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // A reading that never goes back; only differences mean anything.
  virtual Duration Monotonic() const = 0;
  // Returns true when `how_long` has passed, false as soon as `stop` is requested.
  virtual bool SleepFor(Duration how_long, std::stop_token stop) = 0;
};

// The machine's clock; lives as long as the process.
Clock& SystemClock();

}  // namespace meshtrain
