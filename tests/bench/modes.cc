#include "tests/bench/modes.h"

#include <algorithm>
#include <cstdio>

namespace meshtrain::bench {

double Milliseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

void WarmUp(const Mode& mode) {
  for (int i = 0; i < 5; ++i) mode.step();
}

void Measure(std::vector<Mode>& modes, double seconds_per_repetition, int repetitions, int least) {
  for (Mode& mode : modes) {
    WarmUp(mode);
    const auto begin = Clock::now();
    for (int i = 0; i < 4; ++i) mode.step();
    mode.steps =
        std::max(least, static_cast<int>(seconds_per_repetition * 1e3 / (Milliseconds(begin) / 4)));
  }
  for (int r = 0; r < repetitions; ++r) {
    for (Mode& mode : modes) {
      WarmUp(mode);
      const auto begin = Clock::now();
      for (int i = 0; i < mode.steps; ++i) mode.step();
      mode.times.push_back(Milliseconds(begin) / mode.steps);
    }
  }
  for (const Mode& mode : modes) mode.check();
}

void Print(Mode mode) {
  std::sort(mode.times.begin(), mode.times.end());
  std::printf(
      "{\"name\": \"%s\", \"step_ms_min\": %.4f, \"step_ms_median\": %.4f, \"steps\": %d}\n",
      mode.name.c_str(), mode.times[0], mode.times[mode.times.size() / 2], mode.steps);
}

}  // namespace meshtrain::bench
