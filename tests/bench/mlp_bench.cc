// The MLP's training step at batch 128: on one device, on eight virtual ones, on eight kept apart;
// beside them its matrix products and its optimizer loop, each alone, and the way from trace to
// plan. The modes take turns, so that a machine whose speed changes changes them alike. One JSON
// line each; see README.md.
//   mlp_bench [seconds per repetition]
//   mlp_bench --kinds [seconds]           on each kind of devices
//   mlp_bench --device KIND [seconds]     on one device of a kind, as cuda
//   mlp_bench --finite-check [seconds]    what looking for NaN and infinities adds to a step
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/examples/core_mlp/model.h"
#include "runtime/base/check.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/pool.h"
#include "runtime/device/pjrt/lowering.h"
#include "runtime/execute/loaded_step.h"
#include "tests/bench/hand_loops.h"
#include "tests/bench/modes.h"

namespace meshtrain::bench {
namespace {

constexpr int64_t kBatch = 128;
constexpr int kRepetitions = 21;

Tensor RandomImages() {
  std::mt19937 random(0);
  std::uniform_real_distribution<float> uniform;
  Tensor x(TensorType{DType::kF32, {kBatch, 784}});
  for (float& v : x.mutable_values<float>()) v = uniform(random) < 0.2f ? uniform(random) : 0.0f;
  return x;
}

Tensor RandomLabels() {
  std::mt19937 random(1);
  Tensor y(TensorType{DType::kI32, {kBatch}});
  for (int32_t& v : y.mutable_values<int32_t>()) v = static_cast<int32_t>(random() % 10);
  return y;
}

// What a training step needs for as long as it runs.
struct Training {
  std::unique_ptr<Session> session;
  core_mlp::Mlp model;
  core_mlp::Adam adam;
  std::optional<Function> function;
};

Mode TrainingStepIn(const char* name, const char* mesh_text, SessionOptions options) {
  const Mesh mesh = Mesh::Parse(mesh_text).value();
  const auto training = std::make_shared<Training>();
  training->session = Session::Create(std::move(options)).value();
  Session& session = *training->session;
  training->model = core_mlp::MakeMlp(session, core_mlp::WeightLayouts(mesh)).value();
  training->adam = core_mlp::Adam::Create(session, training->model.variables()).value();
  training->function.emplace(session, "train_step", std::vector<std::string>{"x", "y"},
                             [t = training.get()](const Value& x, const Value& y) {
                               return core_mlp::TrainStep(t->model, t->adam, x, y);
                             });
  const std::pair batch(core_mlp::Repack(session, RandomImages(), mesh).value(),
                        core_mlp::Repack(session, RandomLabels(), mesh).value());
  execute::LoadedStep* step =
      training->function
          ->Prepare(std::vector<TensorType>{batch.first.type(), batch.second.type()},
                    std::vector<Layout>{batch.first.layout(), batch.second.layout()})
          .value();
  MT_CHECK(step->Feed(0, batch.first).ok() && step->Feed(1, batch.second).ok());
  return {name, [training, step] { MT_CHECK(step->Run().ok()); },
          [step] { MT_CHECK(std::isfinite(step->FetchNumber(0).value())); }};
}

Mode TrainingStep(const char* name, const char* mesh_text, bool isolated,
                  bool guard_updates = true) {
  return TrainingStepIn(name, mesh_text, {.isolated = isolated, .guard_updates = guard_updates});
}

// The step's eight products, through oneDNN on the pool.
Mode Products() {
  struct Product {
    device::cpu::GemmShape shape;
    std::vector<float> a, b, c;
  };
  const auto products = std::make_shared<std::vector<Product>>();
  const auto add = [&](int64_t m, int64_t k, int64_t n, bool transpose_a, bool transpose_b) {
    device::cpu::GemmShape s{
        .m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b};
    s.lda = transpose_a ? m : k;
    s.ldb = transpose_b ? k : n;
    s.ldc = n;
    products->push_back({s, std::vector<float>(m * k, 0.5f), std::vector<float>(k * n, 0.25f),
                         std::vector<float>(m * n)});
  };
  const int64_t sizes[][2] = {{784, 700}, {700, 500}, {500, 10}};
  for (const auto& [in, out] : sizes) {
    add(kBatch, in, out, false, false);                // y = x w
    add(in, kBatch, out, true, false);                 // dw = x^T dy
    if (in != 784) add(kBatch, out, in, false, true);  // dx = dy w^T
  }
  return {.name = "products", .step = [products, pool = std::make_shared<device::cpu::Pool>(0)] {
            const device::cpu::OneOpenMpThread one;
            for (Product& p : *products) {
              const auto split = SplitGemm(p.shape, pool->threads());
              pool->Run(split.pieces, [&](int64_t i) {
                const auto piece = PieceOf(p.shape, split, i);
                device::cpu::Gemm(piece.shape, p.a.data() + piece.a, p.b.data() + piece.b,
                                  p.c.data() + piece.c);
              });
            }
          }};
}

Mode OptimizerLoop() {
  constexpr int64_t kParameters = 784 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10;
  struct Adam {
    std::vector<float> g = std::vector<float>(kParameters, 0.01f),
                       m = std::vector<float>(kParameters), v = m, p = m;
    AdamRates rates;
  };
  const auto adam = std::make_shared<Adam>();
  return {.name = "optimizer", .step = [adam, pool = std::make_shared<device::cpu::Pool>(0)] {
            adam->rates.correct1 = 0.9f;
            pool->For(kParameters, 16384, [&](int64_t begin, int64_t end) {
              HandAdam(adam->rates, adam->g.data(), adam->m.data(), adam->v.data(), adam->p.data(),
                       begin, end);
            });
          }};
}

// From trace to plan, on eight devices.
std::function<plan::Plan()> Planning() {
  const Mesh mesh = Mesh::Parse("batch=8").value();
  const auto training = std::make_shared<Training>();
  training->session = Session::Create().value();
  training->model = core_mlp::MakeMlp(*training->session, core_mlp::WeightLayouts(mesh)).value();
  training->adam = core_mlp::Adam::Create(*training->session, training->model.variables()).value();
  sharding::Given given;
  given.inputs = {{"x", Layout::BatchSharded(mesh, "batch", 2).value()},
                  {"y", Layout::BatchSharded(mesh, "batch", 1).value()}};
  return [training, mesh, given] {
    const std::vector<TensorType> types = {{DType::kF32, {kBatch, 784}}, {DType::kI32, {kBatch}}};
    const Function train(*training->session, "train_step", {"x", "y"},
                         [&](const Value& x, const Value& y) {
                           return core_mlp::TrainStep(training->model, training->adam, x, y);
                         });
    std::vector<Variable> variables;
    const auto program = train.Trace(types, &variables).value();
    return training->session->PlanOnly(program, mesh, given).value();
  };
}

Mode TraceToPlan() {
  return {.name = "plan", .step = [plan = Planning()] { plan(); }};
}

// The plan as the text that a plugin gets.
Mode PlanToStableHlo() {
  return {.name = "pjrt_text",
          .step = [plan = Planning()()] { MT_CHECK(device::pjrt::Lower(plan).ok()); }};
}

// Of all threads of this process; what other processes do moves it less than it moves the clock.
double ProcessorMilliseconds() {
  timespec t{};
  MT_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

// Pairs of a step with the check and one without, which of them first taking turns. What is printed
// is the median of the pairs' ratios, with the quartiles, and the ratio of the least times.
void CompareFiniteCheck(const char* name, const char* mesh, bool isolated, double seconds) {
  const Mode modes[] = {TrainingStep("checked", mesh, isolated, true),
                        TrainingStep("unchecked", mesh, isolated, false)};
  for (const Mode& mode : modes) WarmUp(mode);
  std::vector<double> percent, times[2];
  const auto begin = Clock::now();
  for (size_t pair = 0; pair < 20 || Milliseconds(begin) < seconds * 1e3; ++pair) {
    double spent[2];
    for (const size_t turn : {pair % 2, 1 - pair % 2}) {
      const double from = ProcessorMilliseconds();
      modes[turn].step();
      spent[turn] = ProcessorMilliseconds() - from;
      times[turn].push_back(spent[turn]);
    }
    percent.push_back(100 * (spent[0] / spent[1] - 1));
  }
  for (const Mode& mode : modes) mode.check();
  const auto at = [](std::vector<double>& list, size_t quarter) {
    std::sort(list.begin(), list.end());
    return list[quarter * (list.size() - 1) / 4];
  };
  std::printf(
      "{\"name\": \"finite_check %s\", \"percent_median\": %.2f, \"percent_quartiles\": [%.2f, "
      "%.2f], \"percent_of_least\": %.2f, \"checked_cpu_ms\": %.4f, \"unchecked_cpu_ms\": %.4f, "
      "\"pairs\": %zu}\n",
      name, at(percent, 2), at(percent, 1), at(percent, 3),
      100 * (at(times[0], 0) / at(times[1], 0) - 1), at(times[0], 2), at(times[1], 2),
      percent.size());
}

}  // namespace
}  // namespace meshtrain::bench

int main(int argc, char** argv) {
  using namespace meshtrain::bench;  // NOLINT: the whole program
  if (argc > 1 && std::string_view(argv[1]) == "--finite-check") {
    const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
    CompareFiniteCheck("one_device", "batch=1", false, seconds);
    CompareFiniteCheck("isolated8", "batch=8", true, seconds);
    return 0;
  }
  if (argc > 1 && std::string_view(argv[1]) == "--kinds") {
    std::vector<Mode> kinds = {TrainingStep("isolated8", "batch=8", true),
                               TrainingStepIn("discrete8", "batch=8", {.device_kind = "discrete"}),
                               PlanToStableHlo()};
    if (std::getenv("MESHTRAIN_PJRT_PLUGIN") != nullptr) {
      kinds.push_back(TrainingStepIn("pjrt8", "batch=8", {.device_kind = "pjrt", .devices = 8}));
      kinds.push_back(
          TrainingStepIn("pjrt8_unguarded", "batch=8",
                         {.device_kind = "pjrt", .devices = 8, .guard_updates = false}));
    }
    Measure(kinds, argc > 2 ? std::atof(argv[2]) : 0.2, kRepetitions);
    for (const Mode& mode : kinds) Print(mode);
    return 0;
  }
  if (argc > 2 && std::string_view(argv[1]) == "--device") {
    const meshtrain::execute::SessionOptions guarded{.device_kind = argv[2]};
    meshtrain::execute::SessionOptions unguarded = guarded;
    unguarded.guard_updates = false;
    std::vector<Mode> kinds = {TrainingStepIn("one_device", "batch=1", guarded),
                               TrainingStepIn("one_device_unguarded", "batch=1", unguarded)};
    Measure(kinds, argc > 3 ? std::atof(argv[3]) : 0.2, kRepetitions);
    for (const Mode& mode : kinds) Print(mode);
    return 0;
  }
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
  std::vector<Mode> modes = {TrainingStep("one_device", "batch=1", false),
                             TrainingStep("virtual8", "batch=8", false),
                             TrainingStep("isolated8", "batch=8", true),
                             Products(),
                             OptimizerLoop(),
                             TraceToPlan()};
  Measure(modes, seconds, kRepetitions);
  for (const Mode& mode : modes) Print(mode);
  return 0;
}
