#include "runtime/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

namespace meshtrain::report {

const std::string_view kChartStyle = R"(
svg.chart { display: block; width: 100%; height: auto; }
svg.chart text { fill: var(--ink); font-size: 13px; }
svg.chart .tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg.chart .label { fill: var(--soft); }
svg.chart .title { font-size: 15px; font-weight: 600; }
svg.chart .grid { stroke: var(--rule); stroke-width: 1; }
svg.chart .axis { stroke: var(--soft); stroke-width: 1; }
svg.chart .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }
svg.chart .line.s0 { stroke: var(--s0); } svg.chart .line.s1 { stroke: var(--s1); stroke-dasharray: 7 4; }
svg.chart .line.many { stroke-width: 1.5; stroke-dasharray: none; }
svg.chart .band { stroke: none; opacity: 0.22; }
svg.chart .band.s0, svg.chart .dot.s0 { fill: var(--s0); }
svg.chart .band.s1, svg.chart .dot.s1 { fill: var(--s1); }
svg.chart .dot { stroke: var(--card); stroke-width: 1.5; }
svg.chart .hit { fill: transparent; }
svg.chart .at { outline: none; }
svg.chart .tip { display: none; pointer-events: none; }
svg.chart .at:hover .tip, svg.chart .at:focus .tip { display: inline; }
svg.chart .tip .guide { stroke: var(--soft); stroke-width: 1; }
svg.chart .tip rect { fill: var(--card); stroke: var(--soft); stroke-width: 1; }
svg.chart .tip text { font-size: 12px; font-variant-numeric: tabular-nums; }
)";

const std::string_view kChartScript = R"(
for (const chart of document.querySelectorAll("svg.chart")) {
  const places = [...chart.querySelectorAll(".at")];
  chart.addEventListener("keydown", (event) => {
    const at = places.indexOf(document.activeElement);
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1}[event.key];
    if (at === -1 || to === undefined) return;
    event.preventDefault();
    if (!places[to]) return;
    places[at].tabIndex = -1;
    places[to].tabIndex = 0;
    places[to].focus();
  });
}
)";

namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 340;
constexpr double kLeft = 58;
constexpr double kRight = 18;
constexpr double kTop = 44;
constexpr double kBottom = 48;
constexpr double kInside = 14;        // from the frame to the first and the last point
constexpr int64_t kMostOnLine = 240;  // points of a line: one for each two units of its width
constexpr size_t kMostDots = 24;      // closer ones would cover the line
constexpr int64_t kMostTooltips = 60;
constexpr double kLetter = 6.6;  // the width of one in a tip, a little more than most have

struct Scale {
  double low, high, from, to;
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
};
struct Frame {
  Scale x, y;
};

// Of a tick: no more decimals than its spacing needs.
std::string TickText(double v, double spacing) {
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", std::abs(v) < spacing * 1e-6 ? 0.0 : v, decimals);
}

void DrawAxes(std::string& out, const Chart& chart, const Frame& frame,
              const std::vector<double>& y_ticks, double first, double last) {
  auto to = std::back_inserter(out);
  const double spacing = y_ticks[1] - y_ticks[0];
  for (const double tick : y_ticks) {
    fmt::format_to(to,
                   "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>",
                   kLeft, frame.y(tick), kWidth - kRight, frame.y(tick));
    fmt::format_to(to,
                   "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                   kLeft - 8, frame.y(tick) + 4, TickText(tick, spacing));
  }
  fmt::format_to(
      to, "<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>",
      kLeft, kHeight - kBottom, kWidth - kRight);
  // Epochs and steps are counted: no tick between two of them. The first has its own, where the
  // next leaves it room.
  const auto mark = [&](double x) {
    fmt::format_to(
        to, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f}</text>",
        frame.x(x), kHeight - kBottom + 18, x);
  };
  std::vector<double> marks;
  const std::vector<double> round = last > first ? Ticks(first, last, 8) : std::vector{first};
  for (const double x : round) {
    if (x >= first && x <= last && x == std::round(x)) marks.push_back(x);
  }
  const double each = round.size() > 1 ? round[1] - round[0] : 1;
  if (marks.empty() || marks.front() - first >= 0.4 * each) mark(first);
  for (const double x : marks) mark(x);
  fmt::format_to(to,
                 "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                 (kLeft + kWidth - kRight) / 2, kHeight - 10, EscapeHtml(chart.x_label));
  fmt::format_to(to, "<text class=\"title\" x=\"{:.1f}\" y=\"24\">{}</text>", kLeft,
                 EscapeHtml(chart.title));
}

void DrawLegend(std::string& out, const Chart& chart) {
  auto to = std::back_inserter(out);
  double at = kWidth - kRight;
  for (auto s = chart.series.rbegin(); s != chart.series.rend(); ++s) {
    at -= 7.2 * static_cast<double>(s->name.size()) + 4;
    fmt::format_to(to, "<text class=\"label\" x=\"{:.1f}\" y=\"24\">{}</text>", at,
                   EscapeHtml(s->name));
    fmt::format_to(to, "<line class=\"line {}\" x1=\"{:.1f}\" y1=\"20\" x2=\"{:.1f}\" y2=\"20\"/>",
                   s->style, at - 26, at - 6);
    at -= 40;
  }
}

void DrawSeries(std::string& out, const Series& s, const Frame& frame) {
  auto to = std::back_inserter(out);
  const std::vector<CurvePoint> points = Thinned(s.points, kMostOnLine);
  std::string line, band;
  for (size_t i = 0; i < points.size();) {
    if (points[i].count == 0) {
      ++i;
      continue;
    }
    size_t end = i;  // of what lies between two gaps
    bool wide = false;
    for (; end < points.size() && points[end].count > 0; ++end) {
      wide = wide || points[end].largest > points[end].least;
      line += fmt::format("{}{:.1f} {:.1f}", end == i ? " M" : " L", frame.x(points[end].x),
                          frame.y(points[end].value));
    }
    if (end == i + 1) line += " h0";  // one point by itself is seen too: its line has round ends
    if (wide) {
      for (size_t k = i; k < end; ++k) {
        band += fmt::format("{}{:.1f} {:.1f}", k == i ? " M" : " L", frame.x(points[k].x),
                            frame.y(points[k].largest));
      }
      for (size_t k = end; k-- > i;) {
        band += fmt::format(" L{:.1f} {:.1f}", frame.x(points[k].x), frame.y(points[k].least));
      }
      band += " Z";
    }
    i = end;
  }
  if (line.empty()) return;
  if (!band.empty()) {
    fmt::format_to(to, "<path class=\"band {}\" d=\"{}\"/>", s.style, band.substr(1));
  }
  const bool many = points.size() > kMostDots;
  fmt::format_to(to, "<path class=\"line {}{}\" d=\"{}\"/>", s.style, many ? " many" : "",
                 line.substr(1));
  if (many) return;
  for (const CurvePoint& p : points) {
    if (p.count == 0) continue;
    fmt::format_to(to, "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", s.style,
                   frame.x(p.x), frame.y(p.value));
  }
}

// What is said at one point of the x axis: a line for where it is, and one for each series.
struct Tooltip {
  std::vector<std::string> lines;
  std::vector<std::pair<const Series*, double>> values;
};

std::map<double, Tooltip> TooltipsOf(const Chart& chart) {
  std::map<double, Tooltip> tooltips;
  for (const Series& s : chart.series) {
    for (const CurvePoint& p : Thinned(s.points, kMostTooltips)) {
      if (p.count == 0) continue;
      Tooltip& tooltip = tooltips[p.x];
      if (tooltip.lines.empty()) {
        tooltip.lines.push_back(
            p.first < p.x ? fmt::format("{}s {:.0f} to {:.0f}", chart.x_label, p.first, p.x)
                          : fmt::format("{} {:.0f}", chart.x_label, p.x));
      }
      std::string text = s.name + " " + FigureText(p.value);
      if (p.largest > p.least) {
        text += " (" + FigureText(p.least) + " to " + FigureText(p.largest) + ")";
      }
      tooltip.lines.push_back(std::move(text));
      tooltip.values.emplace_back(&s, p.value);
    }
  }
  return tooltips;
}

void DrawTooltips(std::string& out, const Chart& chart, const Frame& frame) {
  auto to = std::back_inserter(out);
  const std::map<double, Tooltip> tooltips = TooltipsOf(chart);
  double begin = kLeft;
  bool first = true;
  for (auto it = tooltips.begin(); it != tooltips.end(); ++it) {
    const auto next = std::next(it);
    const double x = frame.x(it->first);
    const double end = next == tooltips.end() ? kWidth - kRight : (x + frame.x(next->first)) / 2;
    std::string all;
    size_t longest = 0;
    for (const std::string& line : it->second.lines) {
      all += (all.empty() ? "" : "; ") + line;
      longest = std::max(longest, line.size());
    }
    fmt::format_to(to,
                   "<g class=\"at\" tabindex=\"{}\" role=\"img\" aria-label=\"{}\"><rect "
                   "class=\"hit\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>",
                   first ? 0 : -1, EscapeHtml(all), begin, kTop, end - begin,
                   kHeight - kBottom - kTop);
    fmt::format_to(to,
                   "<g class=\"tip\"><line class=\"guide\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" "
                   "x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>",
                   x, kTop, kHeight - kBottom);
    for (const auto& [series, value] : it->second.values) {
      fmt::format_to(to, "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>",
                     series->style, x, frame.y(value));
    }
    const double width = 16 + kLetter * static_cast<double>(longest);
    const double height = 10 + 16 * static_cast<double>(it->second.lines.size());
    // Beside the guide, on the side that has room.
    const double left = x + 10 + width < kWidth - kRight ? x + 10 : std::max(2.0, x - 10 - width);
    fmt::format_to(to,
                   "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\"/>",
                   left, kTop + 4, width, height);
    double y = kTop + 4 + 17;
    for (const std::string& line : it->second.lines) {
      fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", left + 8, y,
                     EscapeHtml(line));
      y += 16;
    }
    out += "</g></g>";
    begin = end;
    first = false;
  }
}

}  // namespace

std::vector<double> Ticks(double low, double high, int wanted) {
  if (!(high > low)) {  // one value: room around it
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= room;
    high += room;
  }
  const double rough = (high - low) / std::max(1, wanted - 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double spacing = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::floor(low / spacing + 1e-9);
  for (double k = first;; ++k) {
    ticks.push_back(k * spacing);
    if (ticks.size() >= 2 && k * spacing >= high - spacing * 1e-9) return ticks;
  }
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

std::string FigureText(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-3 && size < 1e6);
  return plain ? fmt::format("{:.4f}", value) : fmt::format("{:.2e}", value);
}

std::string RenderChart(const Chart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = kInfinity, high = -kInfinity, first = kInfinity, last = -kInfinity;
  for (const Series& s : chart.series) {
    for (const CurvePoint& p : s.points) {
      first = std::min(first, p.first);
      last = std::max(last, p.x);
      if (p.count == 0) continue;
      low = std::min(low, p.least);
      high = std::max(high, p.largest);
    }
  }
  if (low > high) low = high = 0;  // nothing to show: an empty frame
  if (first > last) first = last = 1;
  if (chart.from_zero) low = std::min(low, 0.0);
  const std::vector<double> ticks = Ticks(low, high, 6);
  const double room = last > first ? 0 : 1;  // one point stands in the middle
  const Frame frame{.x = {first - room, last + room, kLeft + kInside, kWidth - kRight - kInside},
                    .y = {ticks.front(), ticks.back(), kHeight - kBottom, kTop}};
  std::string out =
      fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"group\" aria-label=\"{}\">",
                  kWidth, kHeight, EscapeHtml(chart.title));
  DrawAxes(out, chart, frame, ticks, first, last);
  DrawLegend(out, chart);
  for (const Series& s : chart.series) DrawSeries(out, s, frame);
  DrawTooltips(out, chart, frame);
  return out + "</svg>";
}

}  // namespace meshtrain::report
