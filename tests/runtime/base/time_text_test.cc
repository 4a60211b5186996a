#include "runtime/base/time_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace meshtrain {
namespace {

TEST(TimeTextTest, TimesRoundTripAndOffsetsAreRead) {
  const auto time = ParseTime("2026-01-02T03:04:05.678901Z");
  ASSERT_TRUE(time);
  EXPECT_EQ(FormatTimeMicros(*time), "2026-01-02T03:04:05.678901Z");
  EXPECT_EQ(FormatTime(*time), "2026-01-02T03:04:05Z");
  EXPECT_EQ(ParseTime("2026-01-02T05:04:05+02:00"), ParseTime("2026-01-02T03:04:05Z"));
  EXPECT_EQ(FormatTime(*ParseTime("2026-02-28T23:59:60Z")), "2026-03-01T00:00:00Z");
  EXPECT_EQ(FormatTime(*ParseTime("2026-01-01T02:00:00.123456789+02:00")), "2026-01-01T00:00:00Z");
}

TEST(TimeTextTest, OddTextsAreNoTimes) {
  for (const char* bad : {"", "soon", "2026-01-01", "2026-02-30T00:00:00Z", "2026-01-01T00:00:00",
                          "2026-01-02T03:04:05 Z", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00.Z",
                          "2026-01-01T00:00:00+0200", "2026-01-01T00:00:00+02:00x",
                          "9999-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2151-01-01T00:00:00Z"}) {
    EXPECT_FALSE(ParseTime(bad).has_value()) << bad;
  }
}

TEST(TimeTextTest, SecondsBeyondAllBoundsAreMany) {
  EXPECT_EQ(BoundedSeconds(int64_t{3600}), std::chrono::hours(1));
  EXPECT_EQ(BoundedSeconds(int64_t{-5}), -std::chrono::seconds(5));
  EXPECT_EQ(BoundedSeconds(0.25), std::chrono::milliseconds(250));
  const TimePoint last = *ParseTime("2150-12-31T23:59:60Z");
  for (const int64_t many : {int64_t{9999999999}, INT64_MAX}) {
    EXPECT_GT(last + BoundedSeconds(many), last + std::chrono::years(68));
    EXPECT_LT(TimePoint() - BoundedSeconds(many), TimePoint() - std::chrono::years(68));
    EXPECT_EQ(BoundedSeconds(-many), -BoundedSeconds(many));
    EXPECT_EQ(BoundedSeconds(static_cast<double>(many)), BoundedSeconds(many));
  }
  EXPECT_EQ(BoundedSeconds(std::nan("")), Duration());
}

}  // namespace
}  // namespace meshtrain
