#include "runtime/base/time_text.h"

#include <cmath>
#include <cstdio>

#include "runtime/base/text.h"

namespace meshtrain {
namespace {

std::string WholeSeconds(TimePoint time) {
  using namespace std::chrono;  // NOLINT: the calendar
  const auto seconds = floor<std::chrono::seconds>(time);
  const auto day = floor<days>(seconds);
  const year_month_day date(day);
  const hh_mm_ss clock(seconds - day);
  char text[40];
  std::snprintf(text, sizeof(text), "%04d-%02u-%02uT%02d:%02d:%02d", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return text;
}

}  // namespace

std::string FormatTime(TimePoint time) { return WholeSeconds(time) + "Z"; }

std::string FormatTimeMicros(TimePoint time) {
  using namespace std::chrono;  // NOLINT: the calendar
  const auto part = floor<microseconds>(time) - floor<seconds>(time);
  char text[16];
  std::snprintf(text, sizeof(text), ".%06dZ", static_cast<int>(part.count()));
  return WholeSeconds(time) + text;
}

std::optional<TimePoint> ParseTime(std::string_view text) {
  using namespace std::chrono;  // NOLINT: the calendar
  // YYYY-MM-DDTHH:MM:SS[.fraction](Z|+HH:MM|-HH:MM)
  const auto number = [&](size_t at, size_t size) -> std::optional<int64_t> {
    if (at + size > text.size()) return std::nullopt;
    for (const char c : text.substr(at, size)) {
      if (c < '0' || c > '9') return std::nullopt;
    }
    return ParseInt(text.substr(at, size));
  };
  if (text.size() < 20 || text[4] != '-' || text[7] != '-' ||
      (text[10] != 'T' && text[10] != 't') || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const auto y = number(0, 4), mo = number(5, 2), d = number(8, 2), h = number(11, 2),
             mi = number(14, 2), s = number(17, 2);
  if (!y || !mo || !d || !h || !mi || !s || *h > 23 || *mi > 59 || *s > 60) return std::nullopt;
  // Nanoseconds in 64 bits are 292 years. A time read here may be taken from another, and a
  // deadline of 32 bits of seconds (68 years) be added.
  if (*y < 1970 || *y > 2150) return std::nullopt;
  const year_month_day date(year(static_cast<int>(*y)), month(static_cast<unsigned>(*mo)),
                            day(static_cast<unsigned>(*d)));
  if (!date.ok()) return std::nullopt;
  size_t at = 19;
  int64_t nanos = 0;
  if (text[at] == '.') {
    int64_t unit = 100'000'000;
    const size_t first = ++at;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at, unit /= 10) {
      nanos += (text[at] - '0') * unit;
    }
    if (at == first) return std::nullopt;
  }
  if (at >= text.size()) return std::nullopt;
  minutes offset{0};
  if (text[at] == 'Z' || text[at] == 'z') {
    if (at + 1 != text.size()) return std::nullopt;
  } else {
    const auto oh = number(at + 1, 2), om = number(at + 4, 2);
    if ((text[at] != '+' && text[at] != '-') || at + 6 != text.size() || text[at + 3] != ':' ||
        !oh || !om) {
      return std::nullopt;
    }
    offset = hours(*oh) + minutes(*om);
    if (text[at] == '-') offset = -offset;
  }
  return TimePoint(sys_days(date)) + hours(*h) + minutes(*mi) + seconds(*s) + nanoseconds(nanos) -
         offset;
}

Duration BoundedSeconds(double seconds) {
  if (std::isnan(seconds)) return {};
  constexpr double kMost = INT32_MAX;
  const std::chrono::duration<double> bounded(std::clamp(seconds, -kMost, kMost));
  return std::chrono::duration_cast<Duration>(bounded);
}

}  // namespace meshtrain
