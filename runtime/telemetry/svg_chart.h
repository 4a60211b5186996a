// A line chart as inline SVG, for pages that need no network. Pure: equal values in, equal bytes
// out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::telemetry {

struct Series {
  std::string name;            // "train"
  std::string style;           // the CSS class that colours it: "s0", "s1", ...
  std::vector<double> values;  // per epoch, from 1; what is not finite leaves a gap
};

struct Chart {
  std::string title;    // "Loss"
  std::string x_label;  // "epoch"
  std::vector<Series> series;
  bool from_zero = false;  // the value axis begins at 0
};

// With axes, round ticks, a legend, and each point's value as its tooltip.
std::string RenderSvg(const Chart& chart);

// Round numbers (1, 2 or 5 times a power of ten apart) that span [low, high]: at least two, about
// `wanted`.
std::vector<double> Ticks(double low, double high, int wanted);

// & < > " as entities.
std::string EscapeHtml(std::string_view text);

}  // namespace meshtrain::telemetry
