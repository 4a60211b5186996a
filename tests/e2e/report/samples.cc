// Runs with noise as training has it, for a browser to look at.
//   e2e_report_samples FOLDER COUNT...   the report of COUNT epochs and as many steps in
//                                        FOLDER/COUNT.html
//   e2e_report_samples --serve COUNT     the same run while it trains, live: prints its port; goes
//                                        on with what stdin says, a line each: "add N" epochs,
//                                        "wait", "fail"; ends with stdin
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <string>

#include "runtime/report/report.h"
#include "runtime/telemetry/endpoints.h"

namespace meshtrain::report {
namespace {

// Eight devices of two processes, three axes.
PlanView Plan() {
  PlanView plan{.axes = {{"batch", 2}, {"x", 2}, {"model", 2}},
                .num_devices = 8,
                .inputs = {{.name = "x",
                            .type = "f32[128,784]",
                            .layout = "{batch, *}",
                            .split = {{"batch"}, {}},
                            .shard = "f32[64,784]",
                            .bytes = 200704}},
                .collectives = {{.kind = "all_reduce", .axes = "batch", .count = 7, .bytes = 2716},
                                {.kind = "all_gather", .axes = "model", .count = 3, .bytes = 1032}},
                .memory = {{"states", 8'910'000}, {"arena", 7'740'000}},
                .peak_bytes = 16'650'000};
  for (int i = 0; i < 8; ++i) {
    plan.devices.push_back((i < 4 ? "cpu:" : "1/cpu:") + std::to_string(i % 4));
  }
  plan.variables.push_back({.name = "hidden_1.kernel",
                            .type = "f32[784,700]",
                            .layout = "{*, x+model}",
                            .split = {{}, {"x", "model"}},
                            .shard = "f32[784,175]",
                            .bytes = 548800});
  // More than a page shows.
  for (int i = 0; i < 299; ++i) {
    plan.variables.push_back({.name = "layer_" + std::to_string(i) + ".bias",
                              .type = "f32[700]",
                              .layout = "{*}",
                              .split = {{}},
                              .shard = "f32[700]",
                              .bytes = 2800});
  }
  return plan;
}

class Run {
 public:
  explicit Run(int64_t epochs) : random_(static_cast<uint32_t>(epochs)), epochs_(epochs) {
    report_.title = "mnist-mlp";
    report_.subtitle = std::to_string(epochs) + " epochs on batch=2,x=2,model=2";
    report_.facts = {{"model", "flatten, dense 700 relu, dense 500 relu, dense 10"},
                     {"parameters", "905010"}};
    report_.plan = Plan();
  }

  void Add() {
    const int64_t e = ++done_;
    std::normal_distribution<double> noise(0, 0.06);
    const double done = static_cast<double>(e) / static_cast<double>(epochs_);
    const double loss = 0.2 + 0.8 * std::exp(-4 * done);
    loss_ = std::abs(loss + noise(random_));
    history_.Add({.epoch = e,
                  .train = {{"loss", loss + 0.3 * noise(random_)}},
                  .test = {{"loss", loss + 0.35 + 0.3 * noise(random_)}},
                  .seconds = 0.1});
    steps_.Add(static_cast<double>(e), loss_);
    times_.Add(static_cast<double>(e), e == 1 ? 0.8 : 0.002 + 0.001 * std::abs(noise(random_)));
  }

  Report Now(Phase phase, std::string why) const {
    Report report = report_;
    report.epochs = history_.Summary();
    report.steps["loss"] = steps_.points();
    report.step_seconds = times_.points();
    report.state = State{.phase = phase,
                         .why = std::move(why),
                         .step = done_,
                         .steps = epochs_,
                         .epoch = std::min(epochs_, done_ + (phase == Phase::kEnded ? 0 : 1)),
                         .epochs = epochs_,
                         .figures = {{"loss", loss_}},
                         .step_seconds = 0.00212,
                         .examples_per_second = 60377,
                         .eta_seconds = 0.00212 * static_cast<double>(epochs_ - done_),
                         .elapsed_seconds = 0.00212 * static_cast<double>(done_)};
    return report;
  }

 private:
  std::mt19937 random_;
  int64_t epochs_, done_ = 0;
  double loss_ = 0;
  EpochHistory history_;
  Curve steps_, times_;
  Report report_;
};

int Serve(int64_t count) {
  std::mutex mutex;
  Run run(2 * count);
  Phase phase = Phase::kTraining;
  std::string why;
  for (int64_t e = 0; e < count; ++e) run.Add();
  const auto document = [&] {
    const std::lock_guard lock(mutex);
    return Document(run.Now(phase, why));
  };
  const auto server = telemetry::Endpoints::Start(
      {},
      {.page = [&] { return RenderPage("mnist-mlp", document(), "run.json"); }, .run = document});
  if (!server.ok()) return 1;
  std::cout << (*server)->port() << std::endl;
  for (std::string word; std::cin >> word;) {
    int64_t more = 0;
    if (word == "add") std::cin >> more;
    {
      const std::lock_guard lock(mutex);
      for (int64_t e = 0; e < more; ++e) run.Add();
      if (word == "wait") phase = Phase::kWaiting, why = "worker-2 is lost";
      if (word == "fail") phase = Phase::kFailed, why = "step 7: <b>loss</b> & gradients";
    }
    std::cout << word << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace meshtrain::report

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--serve") {
    return meshtrain::report::Serve(std::stoll(argv[2]));
  }
  for (int i = 2; i < argc; ++i) {
    const int64_t count = std::stoll(argv[i]);
    meshtrain::report::Run run(count);
    for (int64_t e = 0; e < count; ++e) run.Add();
    std::ofstream page(std::string(argv[1]) + "/" + argv[i] + ".html");
    page << meshtrain::report::RenderPage(run.Now(meshtrain::report::Phase::kEnded, ""));
    if (!page.flush()) return 1;
  }
  return 0;
}
