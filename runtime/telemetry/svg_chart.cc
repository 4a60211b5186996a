#include "runtime/telemetry/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace meshtrain::telemetry {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 340;
constexpr double kLeft = 58;
constexpr double kRight = 18;
constexpr double kTop = 44;
constexpr double kBottom = 48;

struct Scale {
  double low, high, from, to;
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
};

// Of a tick: no more decimals than its spacing needs.
std::string TickText(double v, double spacing) {
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", std::abs(v) < spacing * 1e-6 ? 0.0 : v, decimals);
}

void DrawAxes(std::string& out, const Chart& chart, const Scale& x, const Scale& y,
              const std::vector<double>& y_ticks, size_t epochs) {
  auto to = std::back_inserter(out);
  const double spacing = y_ticks[1] - y_ticks[0];
  for (const double tick : y_ticks) {
    fmt::format_to(to,
                   "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>",
                   kLeft, y(tick), kWidth - kRight, y(tick));
    fmt::format_to(to,
                   "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                   kLeft - 8, y(tick) + 4, TickText(tick, spacing));
  }
  fmt::format_to(
      to, "<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>",
      kLeft, kHeight - kBottom, kWidth - kRight);
  const size_t every = std::max<size_t>(1, (epochs + 9) / 10);
  for (size_t e = 1; e <= epochs; ++e) {
    if (e != 1 && e % every != 0) continue;
    fmt::format_to(
        to, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
        x(static_cast<double>(e)), kHeight - kBottom + 18, e);
  }
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

void DrawSeries(std::string& out, const Series& s, const Scale& x, const Scale& y) {
  auto to = std::back_inserter(out);
  std::string path;
  bool pen_down = false;
  for (size_t i = 0; i < s.values.size(); ++i) {
    if (!std::isfinite(s.values[i])) {
      pen_down = false;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? " L" : " M", x(static_cast<double>(i + 1)),
                        y(s.values[i]));
    pen_down = true;
  }
  if (path.empty()) return;
  fmt::format_to(to, "<path class=\"line {}\" d=\"{}\"/>", s.style, path.substr(1));
  for (size_t i = 0; i < s.values.size(); ++i) {
    if (!std::isfinite(s.values[i])) continue;
    fmt::format_to(to,
                   "<circle class=\"dot {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>epoch {}, "
                   "{}: {:.4f}</title></circle>",
                   s.style, x(static_cast<double>(i + 1)), y(s.values[i]),
                   s.values.size() > 40 ? 2 : 4, i + 1, EscapeHtml(s.name), s.values[i]);
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

std::string RenderSvg(const Chart& chart) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  size_t epochs = 1;
  for (const Series& s : chart.series) {
    epochs = std::max(epochs, s.values.size());
    for (const double v : s.values) {
      if (!std::isfinite(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  if (low > high) low = high = 0;  // nothing to show: an empty frame
  if (chart.from_zero) low = std::min(low, 0.0);
  const std::vector<double> ticks = Ticks(low, high, 6);
  const double one = static_cast<double>(epochs);
  const Scale x{epochs > 1 ? 1.0 : 0.0, epochs > 1 ? one : 2.0, kLeft + 14, kWidth - kRight - 14};
  const Scale y{ticks.front(), ticks.back(), kHeight - kBottom, kTop};
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                                kWidth, kHeight, EscapeHtml(chart.title));
  DrawAxes(out, chart, x, y, ticks, epochs);
  DrawLegend(out, chart);
  for (const Series& s : chart.series) DrawSeries(out, s, x, y);
  return out + "</svg>";
}

}  // namespace meshtrain::telemetry
