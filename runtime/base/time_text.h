// Times as text and spans of seconds, as Kubernetes writes and reads them. Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"

namespace meshtrain {

// RFC 3339 in UTC with whole seconds, as metav1.Time: "2026-01-02T03:04:05Z".
std::string FormatTime(TimePoint time);
// The same with microseconds, as metav1.MicroTime: "2026-01-02T03:04:05.678901Z".
std::string FormatTimeMicros(TimePoint time);
// RFC 3339 with any offset; fractions are kept to nanoseconds. Nothing for other text, and for
// years before 1970 or after 2150: two times may be taken from each other.
std::optional<TimePoint> ParseTime(std::string_view text);

// Seconds that somebody wrote down; of more than 32 bits hold (68 years), so many. Who writes
// 9999999999 means never, and nanoseconds in 64 bits would wrap around. Kept true: added to a time
// that ParseTime reads, or taken from it, they stay in range.
constexpr Duration BoundedSeconds(int64_t seconds) {
  constexpr int64_t kMost = INT32_MAX;
  return std::chrono::seconds(std::clamp(seconds, -kMost, kMost));
}
// The same with fractions.
Duration BoundedSeconds(double seconds);

}  // namespace meshtrain
