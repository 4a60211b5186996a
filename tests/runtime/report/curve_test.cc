#include "runtime/report/curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace meshtrain::report {
namespace {

int64_t Values(const std::vector<CurvePoint>& points) {
  int64_t sum = 0;
  for (const CurvePoint& p : points) sum += p.count;
  return sum;
}

TEST(CurveTest, AFewValuesAreKeptAsTheyAre) {
  Curve curve(8);
  for (int i = 1; i <= 8; ++i) curve.Add(i, 10.0 / i);
  ASSERT_EQ(curve.points().size(), 8u);
  for (int i = 1; i <= 8; ++i) {
    const CurvePoint& p = curve.points()[i - 1];
    EXPECT_EQ(p.x, i);
    EXPECT_EQ(p.value, 10.0 / i);
    EXPECT_EQ(p.least, p.largest);
    EXPECT_EQ(p.count, 1);
  }
}

// Of any number of values: bounded, none lost, each group's mean, least and largest its own.
TEST(CurveTest, ManyValuesAreGroupsOfOneSize) {
  for (const int64_t most : {2, 7, 8, 512}) {
    for (const int64_t n : {3, 9, 100, 1024, 5001}) {
      std::minstd_rand random(static_cast<uint32_t>(most * n));
      Curve curve(most);
      std::vector<double> all;
      for (int64_t i = 1; i <= n; ++i) {
        all.push_back(std::uniform_real_distribution<>(-1, 1)(random));
        curve.Add(static_cast<double>(i), all.back());
      }
      ASSERT_LE(curve.points().size(), static_cast<size_t>(most));
      EXPECT_EQ(Values(curve.points()), n);
      size_t at = 0;
      for (const CurvePoint& p : curve.points()) {
        double sum = 0, least = 1, largest = -1;
        for (int64_t k = 0; k < p.count; ++k, ++at) {
          sum += all[at];
          least = std::min(least, all[at]);
          largest = std::max(largest, all[at]);
        }
        EXPECT_EQ(p.x, static_cast<double>(at));
        EXPECT_EQ(p.first, static_cast<double>(at - p.count + 1));
        EXPECT_NEAR(p.value, sum / static_cast<double>(p.count), 1e-9);
        EXPECT_EQ(p.least, least);
        EXPECT_EQ(p.largest, largest);
      }
      const int64_t group = curve.points().front().count;
      for (size_t i = 0; i + 1 < curve.points().size(); ++i) {
        EXPECT_EQ(curve.points()[i].count, group) << most << " " << n << " " << i;
      }
    }
  }
}

TEST(CurveTest, WhatIsNotFiniteCountsForNothing) {
  Curve curve(4);
  curve.Add(1, std::nan(""));
  curve.Add(2, 3);
  curve.Add(3, std::numeric_limits<double>::infinity());
  EXPECT_EQ(curve.points()[0].count, 0);
  EXPECT_EQ(curve.points()[2].count, 0);
  for (int i = 4; i <= 6; ++i) curve.Add(i, 5);
  EXPECT_EQ(Values(curve.points()), 4);
  EXPECT_EQ(curve.points()[0].value, 3) << "the mean of a gap and 3";
}

TEST(CurveTest, WhatIsAbsentIsNotWhatIsNoNumber) {
  Curve curve(4);
  curve.AddAbsent(1);
  curve.AddAbsent(2);
  curve.AddAbsent(3);
  curve.Add(4, std::nan(""));
  curve.Add(5, 7);
  EXPECT_TRUE(curve.points()[0].absent);
  EXPECT_EQ(curve.points()[0].count, 0);
  EXPECT_FALSE(curve.points()[1].absent) << "one of them is no number";
  EXPECT_EQ(curve.points()[2].value, 7);
  EXPECT_FALSE(curve.points()[2].absent);
}

TEST(CurveTest, WhatIsDoneAgainIsForgottenFirst) {
  Curve curve(8);
  for (int i = 1; i <= 20; ++i) curve.Add(i, i);
  curve.CutBehind(10);
  ASSERT_FALSE(curve.points().empty());
  EXPECT_LE(curve.points().back().x, 10);
  for (int i = 11; i <= 40; ++i) curve.Add(i, -i);
  EXPECT_EQ(curve.points().back().x, 40);
  for (const CurvePoint& p : curve.points()) {
    if (p.x <= 10) {
      EXPECT_GT(p.least, 0);
    }
  }
  curve.CutBehind(0);
  EXPECT_TRUE(curve.points().empty());
  curve.Add(1, 7);
  EXPECT_EQ(curve.points().back().value, 7);
}

TEST(ThinnedTest, KeepsWhatIsFewAndTheOrder) {
  std::vector<CurvePoint> points;
  for (int i = 1; i <= 10; ++i) points.push_back(PointAt(i, i));
  EXPECT_EQ(Thinned(points, 10).size(), 10u);
  const std::vector<CurvePoint> thin = Thinned(points, 4);
  ASSERT_EQ(thin.size(), 4u);
  EXPECT_EQ(thin[0].x, 3);
  EXPECT_EQ(thin[0].value, 2);
  EXPECT_EQ(thin[3].x, 10);
  EXPECT_EQ(thin[3].count, 1);
  EXPECT_TRUE(Thinned({}, 4).empty());
}

}  // namespace
}  // namespace meshtrain::report
