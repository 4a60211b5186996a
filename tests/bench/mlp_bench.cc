// The MLP's training step at batch 128: on one device, on eight virtual ones, on eight kept apart; beside them its
// matrix products and its optimizer loop, each alone, and the way from trace to plan. One JSON line each; see README.md.
//   mlp_bench [seconds per repetition]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "deploy/examples/core_mlp/model.h"
#include "runtime/base/check.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/pool.h"
#include "tests/bench/hand_loops.h"

namespace meshtrain::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kBatch = 128;
constexpr int kRepetitions = 7;
double seconds_per_repetition = 0.6;

double Milliseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

// As the peers' measure(): a few to warm up, then repetitions of about 0.6 s.
void Report(const char* name, const std::function<void()>& step) {
  for (int i = 0; i < 5; ++i) step();
  auto begin = Clock::now();
  for (int i = 0; i < 4; ++i) step();
  const int steps = std::max(4, static_cast<int>(seconds_per_repetition * 1e3 / (Milliseconds(begin) / 4)));
  std::vector<double> times;
  for (int r = 0; r < kRepetitions; ++r) {
    begin = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    times.push_back(Milliseconds(begin) / steps);
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"name\": \"%s\", \"step_ms_min\": %.4f, \"step_ms_median\": %.4f, \"steps\": %d}\n", name, times[0],
              times[times.size() / 2], steps);
  std::fflush(stdout);
}

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

void TrainingStep(const char* name, const char* mesh_text, bool isolated) {
  const Mesh mesh = Mesh::Parse(mesh_text).value();
  const auto session = Session::Create({.isolated = isolated}).value();
  const core_mlp::Mlp model = core_mlp::MakeMlp(*session, core_mlp::WeightLayouts(mesh)).value();
  const core_mlp::Adam adam = core_mlp::Adam::Create(*session, model.variables()).value();
  Function train(*session, "train_step", {"x", "y"},
                 [&](const Value& x, const Value& y) { return core_mlp::TrainStep(model, adam, x, y); });
  const auto batch = core_mlp::RepackBatch(*session, RandomImages(), RandomLabels(), mesh).value();
  execute::LoadedStep* step =
      train.Prepare(std::vector<TensorType>{batch.first.type(), batch.second.type()},
                    std::vector<Layout>{batch.first.layout(), batch.second.layout()})
          .value();
  MT_CHECK(step->Feed(0, batch.first).ok() && step->Feed(1, batch.second).ok());
  Report(name, [&] { MT_CHECK(step->Run().ok()); });
  MT_CHECK(std::isfinite(step->FetchNumber(0).value()));
}

// The step's eight products, through oneDNN on the pool.
void Products() {
  device::cpu::Pool pool(0);
  const device::cpu::OneOpenMpThread one;
  struct Product {
    device::cpu::GemmShape shape;
    std::vector<float> a, b, c;
  };
  std::vector<Product> products;
  const auto add = [&](int64_t m, int64_t k, int64_t n, bool transpose_a, bool transpose_b) {
    device::cpu::GemmShape s{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b};
    s.lda = transpose_a ? m : k;
    s.ldb = transpose_b ? k : n;
    s.ldc = n;
    products.push_back({s, std::vector<float>(m * k, 0.5f), std::vector<float>(k * n, 0.25f), std::vector<float>(m * n)});
  };
  const int64_t sizes[][2] = {{784, 700}, {700, 500}, {500, 10}};
  for (const auto& [in, out] : sizes) {
    add(kBatch, in, out, false, false);                      // y = x w
    add(in, kBatch, out, true, false);                       // dw = x^T dy
    if (in != 784) add(kBatch, out, in, false, true);        // dx = dy w^T
  }
  Report("products", [&] {
    for (Product& p : products) {
      const auto split = SplitGemm(p.shape, pool.threads());
      pool.Run(split.pieces, [&](int64_t i) {
        const auto piece = PieceOf(p.shape, split, i);
        device::cpu::Gemm(piece.shape, p.a.data() + piece.a, p.b.data() + piece.b, p.c.data() + piece.c);
      });
    }
  });
}

void OptimizerLoop() {
  device::cpu::Pool pool(0);
  constexpr int64_t kParameters = 784 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10;
  std::vector<float> g(kParameters, 0.01f), m(kParameters), v(kParameters), p(kParameters);
  AdamRates rates;
  Report("optimizer", [&] {
    rates.correct1 = 0.9f;
    pool.For(kParameters, 16384, [&](int64_t begin, int64_t end) {
      HandAdam(rates, g.data(), m.data(), v.data(), p.data(), begin, end);
    });
  });
}

void TraceToPlan() {
  const Mesh mesh = Mesh::Parse("batch=8").value();
  const auto session = Session::Create().value();
  const core_mlp::Mlp model = core_mlp::MakeMlp(*session, core_mlp::WeightLayouts(mesh)).value();
  const core_mlp::Adam adam = core_mlp::Adam::Create(*session, model.variables()).value();
  const std::vector<TensorType> types = {{DType::kF32, {kBatch, 784}}, {DType::kI32, {kBatch}}};
  Report("plan", [&] {
    const Function train(*session, "train_step", {"x", "y"},
                         [&](const Value& x, const Value& y) { return core_mlp::TrainStep(model, adam, x, y); });
    std::vector<Variable> variables;
    const auto program = train.Trace(types, &variables).value();
    sharding::Given given;
    given.inputs = {{"x", Layout::BatchSharded(mesh, "batch", 2).value()},
                    {"y", Layout::BatchSharded(mesh, "batch", 1).value()}};
    MT_CHECK(session->PlanOnly(program, mesh, given).ok());
  });
}

}  // namespace
}  // namespace meshtrain::bench

int main(int argc, char** argv) {
  if (argc > 1) meshtrain::bench::seconds_per_repetition = std::atof(argv[1]);
  meshtrain::bench::TrainingStep("one_device", "batch=1", false);
  meshtrain::bench::TrainingStep("virtual8", "batch=8", false);
  meshtrain::bench::TrainingStep("isolated8", "batch=8", true);
  meshtrain::bench::Products();
  meshtrain::bench::OptimizerLoop();
  meshtrain::bench::TraceToPlan();
  return 0;
}
