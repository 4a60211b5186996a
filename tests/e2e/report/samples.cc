// e2e_report_samples FOLDER COUNT...: a report of COUNT epochs and as many steps in
// FOLDER/COUNT.html, with noise as training has it.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>

#include "runtime/report/report.h"

namespace meshtrain::report {
namespace {

Report Sample(int64_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::normal_distribution<double> noise(0, 0.06);
  Report report{.title = "mnist-mlp",
                .subtitle = std::to_string(count) + " epochs on batch=8",
                .epochs = {},
                .steps = {},
                .facts = {{"model", "flatten, dense 700 relu, dense 500 relu, dense 10"},
                          {"parameters", "905010"}},
                .reload_seconds = {}};
  Curve steps;
  for (int64_t e = 1; e <= count; ++e) {
    const double done = static_cast<double>(e) / static_cast<double>(count);
    const double loss = 0.2 + 0.8 * std::exp(-4 * done);
    report.epochs.push_back({.epoch = e,
                             .train = {{"loss", loss + 0.3 * noise(random)}},
                             .test = {{"loss", loss + 0.35 + 0.3 * noise(random)}},
                             .seconds = 0.1});
    steps.Add(static_cast<double>(e), std::abs(loss + noise(random)));
  }
  report.steps["loss"] = steps.points();
  return report;
}

}  // namespace
}  // namespace meshtrain::report

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const meshtrain::report::Report report = meshtrain::report::Sample(std::stoll(argv[i]));
    std::ofstream page(std::string(argv[1]) + "/" + argv[i] + ".html");
    page << meshtrain::report::RenderPage(report);
    if (!page.flush()) return 1;
  }
  return 0;
}
