#include "runtime/report/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshtrain::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int Occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Chart Falling(int64_t points) {
  Chart chart{.title = "Loss", .x_label = "epoch", .series = {{"train", "s0", {}}}};
  for (int64_t i = 1; i <= points; ++i) {
    const auto x = static_cast<double>(i);
    chart.series[0].points.push_back(PointAt(x, 1 / x + (i % 2 == 0 ? 0.1 : 0)));
  }
  return chart;
}

TEST(ChartTest, FewPointsAreDotsAndManyAreALineInABand) {
  const std::string few = RenderChart(Falling(20));
  EXPECT_THAT(few, HasSubstr("<path class=\"line s0\""));
  EXPECT_EQ(Occurrences(few, "<circle class=\"dot"), 2 * 20) << "drawn, and one in each tip";
  EXPECT_THAT(few, Not(HasSubstr("band")));
  const std::string many = RenderChart(Falling(1200));
  EXPECT_THAT(many, HasSubstr("<path class=\"line s0 many\""));
  EXPECT_THAT(many, HasSubstr("<path class=\"band s0\""));
  EXPECT_EQ(Occurrences(many, "<circle class=\"dot"), Occurrences(many, "class=\"at\""));
}

TEST(ChartTest, OnePointIsADot) {
  const std::string one = RenderChart(Falling(1));
  EXPECT_THAT(one, HasSubstr("<circle class=\"dot s0\""));
  EXPECT_THAT(one, Not(HasSubstr("nan")));
  EXPECT_EQ(Occurrences(one, "tabindex=\"0\""), 1);
}

TEST(ChartTest, APlaceSaysWhatStandsThere) {
  Chart chart = Falling(3);
  chart.series.push_back(
      {"test", "s1", {PointAt(1, 0.5), PointAt(2, std::nan("")), PointAt(3, 0.25)}});
  const std::string svg = RenderChart(chart);
  EXPECT_THAT(svg, HasSubstr("aria-label=\"epoch 1; train 1.0000; test 0.5000\""));
  EXPECT_THAT(svg, HasSubstr("aria-label=\"epoch 2; train 0.6000\""));
  EXPECT_EQ(Occurrences(svg, "tabindex=\"0\""), 1) << "Tab reaches a chart once";
  EXPECT_EQ(Occurrences(svg, "tabindex=\"-1\""), 2);
}

TEST(ChartTest, PlacesAreFew) {
  for (const int64_t points : {61, 1200, 20000}) {
    const std::string svg = RenderChart(Falling(points));
    EXPECT_LE(Occurrences(svg, "class=\"at\""), 60) << points;
    EXPECT_GE(Occurrences(svg, "class=\"at\""), 30) << points;
    EXPECT_LT(svg.size(), 60'000u) << points;
  }
  EXPECT_THAT(RenderChart(Falling(120)),
              HasSubstr("epochs 1 to 2; train 0.8000 (0.6000 to 1.0000)"));
}

TEST(ChartTest, GapsStayGaps) {
  Chart chart = Falling(5);
  chart.series[0].points[1] = PointAt(2, std::nan(""));
  chart.series[0].points[3] = PointAt(4, std::numeric_limits<double>::infinity());
  const std::string svg = RenderChart(chart);
  EXPECT_EQ(Occurrences(svg, " h0"), 3) << "each of the three points stands by itself";
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  for (CurvePoint& p : chart.series[0].points) p.count = 0;
  EXPECT_THAT(RenderChart(chart), Not(HasSubstr("<path class=\"line s0")));
}

TEST(ChartTest, TicksOfCountedThingsAreWholeAndKeepTheirNumbers) {
  const std::string twenty = RenderChart(Falling(20));
  for (const char* tick : {">1</text>", ">5</text>", ">10</text>", ">20</text>"}) {
    EXPECT_THAT(twenty, HasSubstr(tick));
  }
  Chart later = Falling(0);
  for (const double x : {101, 102, 103}) later.series[0].points.push_back(PointAt(x, 1 / x));
  EXPECT_THAT(RenderChart(later), HasSubstr(">101</text>"));
  EXPECT_THAT(RenderChart(later), Not(HasSubstr(">1</text>")));
}

TEST(ChartTest, FiguresHaveFourDecimalsWhereTheySay) {
  EXPECT_EQ(FigureText(0.83104), "0.8310");
  EXPECT_EQ(FigureText(0), "0.0000");
  EXPECT_EQ(FigureText(-12.5), "-12.5000");
  EXPECT_EQ(FigureText(1.2e-6), "1.20e-06");
  EXPECT_EQ(FigureText(2.5e7), "2.50e+07");
  EXPECT_EQ(FigureText(std::nan("")), "–");
}

TEST(TicksTest, AreRoundAndSpanTheValues) {
  EXPECT_EQ(Ticks(0, 10, 6), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks(0, 0, 6).size() >= 2, true);
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0.187, 0.831}, {-3, 1e-3}, {1e-9, 2e-9}, {123456, 123457}, {-5, -5}, {0, 1e12}}) {
    const std::vector<double> ticks = Ticks(low, high, 6);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high - 1e-9 * std::abs(high));
    EXPECT_LE(ticks.size(), 12u);
  }
}

}  // namespace
}  // namespace meshtrain::report
