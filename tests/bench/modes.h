// Steps that are timed in turns, repetition by repetition, so that a machine whose speed changes
// changes all of them alike.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace meshtrain::bench {

using Clock = std::chrono::steady_clock;
double Milliseconds(Clock::time_point from);

// A mode owns what its step uses.
struct Mode {
  std::string name;
  std::function<void()> step;
  std::function<void()> check = [] {};  // after the last step
  int steps = 0;                        // of one repetition
  std::vector<double> times = {};       // milliseconds a step, one of each repetition
};

// Steps before the clock starts: the mode before has left its own data in the caches.
void WarmUp(const Mode& mode);

// Repetitions of about so many seconds, and of at least `least` steps.
void Measure(std::vector<Mode>& modes, double seconds_per_repetition, int repetitions,
             int least = 4);

// One JSON line: name, step_ms_min, step_ms_median, steps of a repetition.
void Print(Mode mode);

}  // namespace meshtrain::bench
