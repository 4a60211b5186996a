// A line chart as inline SVG, for pages that need no network. Pure: equal values in, equal bytes
// out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/report/curve.h"

namespace meshtrain::report {

struct Series {
  std::string name;                // "train"
  std::string style;               // the CSS class that colours it: "s0", "s1", ...
  std::vector<CurvePoint> points;  // by x; gaps stay gaps
};

struct Chart {
  std::string title;    // "Loss"
  std::string x_label;  // "epoch": what is counted
  std::vector<Series> series;
  bool from_zero = false;  // the value axis begins at 0
};

// With axes, round ticks and a legend. Few points are drawn as dots, many as a line in a band from
// the least to the largest value. What stands at a place is shown where a pointer is over it, and
// where one of the places, of which each chart has at most 60, has the keyboard's focus: Tab
// reaches the chart, and with kChartScript the arrow keys, Home and End go along it. The page needs
// kChartStyle.
std::string RenderChart(const Chart& chart);
extern const std::string_view kChartStyle;   // CSS
extern const std::string_view kChartScript;  // JavaScript; without it Tab stops at the first place

// Round numbers (1, 2 or 5 times a power of ten apart) that span [low, high]: at least two, about
// `wanted`.
std::vector<double> Ticks(double low, double high, int wanted);

// "0.8310", "1.20e-06"; a dash for what is not finite.
std::string FigureText(double value);

// & < > " as entities.
std::string EscapeHtml(std::string_view text);

}  // namespace meshtrain::report
