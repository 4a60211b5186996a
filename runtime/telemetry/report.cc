#include "runtime/telemetry/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/telemetry/svg_chart.h"

namespace meshtrain::telemetry {
namespace {

constexpr std::string_view kStyle = R"(
:root { --page: #f7f7f5; --card: #ffffff; --ink: #1d1d1f; --soft: #6b6b70; --rule: #e4e4e0;
        --s0: #2563b8; --s1: #d9661f; }
@media (prefers-color-scheme: dark) {
  :root { --page: #17181a; --card: #202225; --ink: #ececea; --soft: #a0a0a6; --rule: #34363a;
          --s0: #6ea8f2; --s1: #f09a5b; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 32px 20px 48px; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; }
h1 { margin: 0; font-size: 26px; font-weight: 650; letter-spacing: -0.01em; }
.subtitle { margin: 2px 0 24px; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 18px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
section.card { margin-top: 18px; overflow-x: auto; }
h2 { margin: 2px 0 8px; font-size: 15px; font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .label { fill: var(--soft); }
svg .title { font-size: 15px; font-weight: 600; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }
svg .line.s0 { stroke: var(--s0); } svg .line.s1 { stroke: var(--s1); stroke-dasharray: 7 4; }
svg .dot.s0 { fill: var(--s0); } svg .dot.s1 { fill: var(--s1); }
svg .dot { stroke: var(--card); stroke-width: 1.5; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px 6px 0; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.last td { font-weight: 600; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { width: 12em; color: var(--soft); }
)";

int Order(const std::string& name) { return name == "loss" ? 0 : name == "accuracy" ? 1 : 2; }

std::vector<std::string> MetricNames(const Report& report) {
  std::vector<std::string> names;
  for (const EpochFigures& e : report.epochs) {
    for (const auto* figures : {&e.train, &e.test}) {
      for (const auto& [name, value] : *figures) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(Order(a), a) < std::pair(Order(b), b);
  });
  return names;
}

double Find(const std::map<std::string, double>& figures, const std::string& name) {
  const auto found = figures.find(name);
  return found == figures.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string Title(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') {
    name[0] = static_cast<char>(name[0] - 'a' + 'A');
  }
  return name;
}

std::string Figure(double v) {
  return std::isfinite(v) ? fmt::format("{:.4f}", v) : std::string("–");
}

bool HasTest(const Report& report) {
  return std::any_of(report.epochs.begin(), report.epochs.end(),
                     [](const EpochFigures& e) { return !e.test.empty(); });
}

std::string ChartOf(const Report& report, const std::string& name, bool test) {
  Chart chart{.title = Title(name),
              .x_label = "epoch",
              .series = {{"train", "s0", {}}},
              .from_zero = name == "loss"};
  if (test) chart.series.push_back({"test", "s1", {}});
  for (const EpochFigures& e : report.epochs) {
    chart.series[0].values.push_back(Find(e.train, name));
    if (test) chart.series[1].values.push_back(Find(e.test, name));
  }
  return "<div class=\"card\">" + RenderSvg(chart) + "</div>\n";
}

std::string Table(const Report& report, const std::vector<std::string>& names, bool test) {
  std::string out = "<section class=\"card\"><h2>Epochs</h2><table><thead><tr><th>epoch</th>";
  for (const char* split : {"train", "test"}) {
    if (split == std::string_view("test") && !test) continue;
    for (const std::string& name : names) {
      out += fmt::format("<th>{} {}</th>", split, EscapeHtml(name));
    }
  }
  out += "<th>seconds</th></tr></thead><tbody>\n";
  for (size_t i = 0; i < report.epochs.size(); ++i) {
    const EpochFigures& e = report.epochs[i];
    out += fmt::format("<tr{}><td>{}</td>", i + 1 == report.epochs.size() ? " class=\"last\"" : "",
                       e.epoch);
    for (const std::string& name : names) out += "<td>" + Figure(Find(e.train, name)) + "</td>";
    if (test) {
      for (const std::string& name : names) out += "<td>" + Figure(Find(e.test, name)) + "</td>";
    }
    out += e.seconds > 0 ? fmt::format("<td>{:.2f}</td></tr>\n", e.seconds) : "<td>–</td></tr>\n";
  }
  return out + "</tbody></table></section>\n";
}

}  // namespace

std::string RenderReport(const Report& report) {
  const std::vector<std::string> names = MetricNames(report);
  const bool test = HasTest(report);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  if (report.reload_seconds) {
    out += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", *report.reload_seconds);
  }
  out += "<title>" + EscapeHtml(report.title) + "</title>\n<style>" + std::string(kStyle) +
         "</style></head>\n<body><main>\n";
  out += "<h1>" + EscapeHtml(report.title) + "</h1>\n<p class=\"subtitle\">" +
         EscapeHtml(report.subtitle) + "</p>\n";
  out += "<div class=\"charts\">\n";
  for (const std::string& name : names) out += ChartOf(report, name, test);
  out += "</div>\n";
  if (report.epochs.empty()) {
    out += "<section class=\"card\">No epoch has ended yet.</section>\n";
  } else {
    out += Table(report, names, test);
  }
  if (!report.facts.empty()) {
    out += "<section class=\"card\"><h2>Run</h2><table class=\"facts\"><tbody>\n";
    for (const auto& [key, value] : report.facts) {
      out += "<tr><td>" + EscapeHtml(key) + "</td><td>" + EscapeHtml(value) + "</td></tr>\n";
    }
    out += "</tbody></table></section>\n";
  }
  return out + "</main></body></html>\n";
}

}  // namespace meshtrain::telemetry
