#include "runtime/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "runtime/report/chart.h"

namespace meshtrain::report {
namespace {

constexpr size_t kMostRows = 40;  // of the table of epochs, but for the best and the last

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
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px 6px 0; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.best td { font-weight: 600; }
small { color: var(--soft); font-weight: 400; }
.note { margin: 8px 0 0; color: var(--soft); }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { width: 12em; color: var(--soft); }
)";

int Order(const std::string& name) { return name == "loss" ? 0 : name == "accuracy" ? 1 : 2; }

std::vector<std::string> MetricNames(const Report& report) {
  std::set<std::string> all;
  for (const EpochFigures& e : report.epochs) {
    for (const auto* figures : {&e.train, &e.test}) {
      for (const auto& [name, value] : *figures) all.insert(name);
    }
  }
  for (const auto& [name, points] : report.steps) all.insert(name);
  std::vector<std::string> names(all.begin(), all.end());
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

bool HasTest(const Report& report) {
  return std::any_of(report.epochs.begin(), report.epochs.end(),
                     [](const EpochFigures& e) { return !e.test.empty(); });
}

std::string Card(const Chart& chart) {
  return "<div class=\"card\">" + RenderChart(chart) + "</div>\n";
}

std::string EpochChart(const Report& report, const std::string& name, bool test) {
  Chart chart{.title = Title(name),
              .x_label = "epoch",
              .series = {{"train", "s0", {}}},
              .from_zero = name == "loss"};
  if (test) chart.series.push_back({"test", "s1", {}});
  for (const EpochFigures& e : report.epochs) {
    const auto x = static_cast<double>(e.epoch);
    chart.series[0].points.push_back(PointAt(x, Find(e.train, name)));
    if (test) chart.series[1].points.push_back(PointAt(x, Find(e.test, name)));
  }
  return Card(chart);
}

std::string StepChart(const std::string& name, const std::vector<CurvePoint>& points) {
  return Card({.title = Title(name) + " of each step",
               .x_label = "step",
               .series = {{"train", "s0", points}},
               .from_zero = name == "loss"});
}

// All of a few epochs; of many each so-manyth, the best and the last.
std::vector<const EpochFigures*> RowsOf(const Report& report, size_t every) {
  const EpochFigures* best = BestEpoch(report);
  std::vector<const EpochFigures*> rows;
  for (size_t i = 0; i < report.epochs.size(); ++i) {
    const EpochFigures* e = &report.epochs[i];
    const bool last = i + 1 == report.epochs.size();
    if (last || e == best || (i + 1) % every == 0) rows.push_back(e);
  }
  return rows;
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
  const size_t every = (report.epochs.size() + kMostRows - 1) / kMostRows;
  const EpochFigures* best = BestEpoch(report);
  for (const EpochFigures* e : RowsOf(report, every)) {
    out += fmt::format("<tr{}><td>{}{}</td>", e == best ? " class=\"best\"" : "", e->epoch,
                       e == best ? " <small>best</small>" : "");
    for (const std::string& name : names)
      out += "<td>" + FigureText(Find(e->train, name)) + "</td>";
    if (test) {
      for (const std::string& name : names)
        out += "<td>" + FigureText(Find(e->test, name)) + "</td>";
    }
    out += e->seconds > 0 ? fmt::format("<td>{:.2f}</td></tr>\n", e->seconds) : "<td>–</td></tr>\n";
  }
  out += "</tbody></table>";
  if (every > 1) {
    out += fmt::format("<p class=\"note\">One in {} of {} epochs, the best and the last.</p>",
                       every, report.epochs.size());
  }
  return out + "</section>\n";
}

}  // namespace

const EpochFigures* BestEpoch(const Report& report) {
  const bool test = HasTest(report);
  const EpochFigures* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const EpochFigures& e : report.epochs) {
    const double loss = Find(test ? e.test : e.train, "loss");
    if (!(loss < least)) continue;
    least = loss;
    best = &e;
  }
  return best;
}

std::string RenderPage(const Report& report) {
  const std::vector<std::string> names = MetricNames(report);
  const bool test = HasTest(report);
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  if (report.reload_seconds) {
    out += fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">\n", *report.reload_seconds);
  }
  out += "<title>" + EscapeHtml(report.title) + "</title>\n<style>" + std::string(kStyle) +
         std::string(kChartStyle) + "</style></head>\n<body><main>\n";
  out += "<h1>" + EscapeHtml(report.title) + "</h1>\n<p class=\"subtitle\">" +
         EscapeHtml(report.subtitle) + "</p>\n";
  out += "<div class=\"charts\">\n";
  for (const std::string& name : names) {
    if (!report.epochs.empty()) out += EpochChart(report, name, test);
    const auto steps = report.steps.find(name);
    if (steps != report.steps.end()) out += StepChart(name, steps->second);
  }
  out += "</div>\n";
  if (!report.facts.empty()) {
    out += "<section class=\"card\"><h2>Run</h2><table class=\"facts\"><tbody>\n";
    for (const auto& [key, value] : report.facts) {
      out += "<tr><td>" + EscapeHtml(key) + "</td><td>" + EscapeHtml(value) + "</td></tr>\n";
    }
    out += "</tbody></table></section>\n";
  }
  if (report.epochs.empty()) {
    out += "<section class=\"card\">No epoch has ended yet.</section>\n";
  } else {
    out += Table(report, names, test);
  }
  return out + "</main>\n<script>" + std::string(kChartScript) + "</script></body></html>\n";
}

}  // namespace meshtrain::report
