// From trace to plan: how planning grows with a model's layers, and what verifying the plan adds.
//   plan_bench --benchmark_filter=Layers
// `Layers/n/axes`: a training step of n dense layers under Adam, on a mesh of so many axes of two
// devices each; a layer is about 27 ops. `verify_percent` is the share of MakePlan and what comes
// before it that Verify takes; `plan_seconds` and it are of processor time, each the least of all
// iterations.
//   plan_bench --benchmark_filter=Blocks
// `Blocks/n/layout`: a manifest's decoder of n blocks on three axes of two devices, traced, laid
// out and planned: 0 by rules (columns, then rows), 1 with `layout: auto`. `step_us`, `kilobytes`
// and `megaflop` are what a step of the plan takes: predicted, sent and computed by a device.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/plan/internal.h"
#include "runtime/plan/plan.h"
#include "runtime/program/ops.h"
#include "runtime/recipe/recipe.h"
#include "runtime/sharding/choose.h"

namespace meshtrain::bench {
namespace {

using benchmark::State;
using program::DType;
using program::Value;
using program::Variable;

constexpr int64_t kUnits = 16;
constexpr int64_t kBatch = 64;

program::Program TrainStep(int layers) {
  program::Builder b("train_step");
  program::Builder::Scope scope(b);
  std::vector<Variable> weights;
  Value h = b.Input("x", {DType::kF32, {kBatch, kUnits}});
  const Value y = b.Input("y", {DType::kI64, {kBatch}});
  for (int i = 0; i < layers; ++i) {
    const std::string name = "layer_" + std::to_string(i);
    weights.emplace_back(name + ".kernel", program::TensorType{DType::kF32, {kUnits, kUnits}});
    weights.emplace_back(name + ".bias", program::TensorType{DType::kF32, {kUnits}});
    h = MatMul(h, weights[2 * i]) + weights[2 * i + 1];
    if (i + 1 < layers) h = Relu(h);
  }
  const Value loss = ReduceMean(SparseSoftmaxCrossEntropy(h, y));
  const std::vector<Value> gradients = b.Gradient(loss, std::span<const Variable>(weights));
  for (size_t i = 0; i < weights.size(); ++i) {
    const Variable m(weights[i].name() + ".m", weights[i].type());
    const Variable v(weights[i].name() + ".v", weights[i].type());
    Assign(m, 0.9 * m + 0.1 * gradients[i]);
    Assign(v, 0.999 * v + 0.001 * Square(gradients[i]));
    AssignSub(weights[i], 1e-3 * (m / (Sqrt(v) + 1e-7)));
  }
  b.Output("loss", loss);
  auto program = b.Build();
  MT_CHECK(program.ok());
  return *std::move(program);
}

double ProcessorSeconds() {
  timespec t{};
  MT_CHECK(::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string Decoder(int64_t blocks, bool look_for_layouts) {
  const std::string by_rules = R"(layout:
  inputs: {x: [batch, unsharded], y: [batch, unsharded]}
  rules:
    - {match: 'blocks.*(query|key|value|up)\.kernel', spec: [rows, model]}
    - {match: 'blocks.*(query|key|value|up)\.bias', spec: [model]}
    - {match: 'blocks.*(output|down)\.kernel', spec: [model, rows]}
    - {match: 'logits\.kernel', spec: [rows, model]}
    - {match: 'logits\.bias', spec: [model]}
)";
  return "mesh: {batch: 2, model: 2, rows: 2}\n"
         "data: {train: {text: {file: a.txt, length: 64}}, batch: 16}\n"
         "loss: {sparse_categorical_crossentropy: {from_logits: true}}\noptimizer: adam\n" +
         (look_for_layouts ? "layout: auto\n" : by_rules) + R"(model:
  layers:
    - embedding: {name: tokens, input_dim: 256, output_dim: 128}
    - repeat:
        name: blocks
        times: )" +
         std::to_string(blocks) + R"(
        layers:
          - layer_normalization: {name: ln1}
          - multi_head_attention: {name: attention, num_heads: 4, use_causal_mask: true}
          - add: {name: attended, inputs: [attention, input]}
          - layer_normalization: {name: ln2}
          - dense: {name: up, units: 512, activation: gelu_tanh}
          - dense: {name: down, units: 128}
          - add: {name: fed, inputs: [down, attended]}
    - dense: {name: logits, units: 256}
)";
}

void Blocks(State& state) {
  const std::string text = Decoder(state.range(0), state.range(1) != 0);
  double all = std::numeric_limits<double>::max();
  for (auto _ : state) {
    const double begin = ProcessorSeconds();
    auto manifest = recipe::ParseManifest(text, "decoder.yaml");
    MT_CHECK(manifest.ok());
    const auto traced = recipe::Build(
        manifest->program, {{mesh::DType::kU8, {16, 64}}, {mesh::DType::kI32, {16, 64}}});
    MT_CHECK(traced.ok());
    const sharding::Options options;
    auto partitioned = sharding::Shard(
        traced->programs.train_step, traced->mesh,
        {.inputs = traced->layouts.inputs, .states = traced->layouts.states}, options);
    MT_CHECK(partitioned.ok());
    const double predicted = sharding::PredictSpent(*partitioned, options.cost).seconds;
    const auto plan = plan::MakePlan(*std::move(partitioned));
    MT_CHECK(plan.ok());
    all = std::min(all, ProcessorSeconds() - begin);
    state.counters["ops"] = static_cast<double>(traced->programs.train_step.ops.size());
    state.counters["step_us"] = 1e6 * predicted;
    state.counters["kilobytes"] = static_cast<double>(plan->CollectiveBytesPerStep()) / 1e3;
    state.counters["megaflop"] = plan->flops / 1e6;
  }
  state.counters["plan_seconds"] = all;
}
BENCHMARK(Blocks)
    ->ArgNames({"blocks", "auto"})
    ->Args({2, 0})
    ->Args({2, 1})
    ->Args({24, 0})
    ->Args({24, 1})
    ->Unit(benchmark::kMillisecond);

void Layers(State& state) {
  static const char* const kMeshes[] = {"", "batch=2", "batch=2,model=2", "batch=2,model=2,rows=2"};
  const char* const axes = kMeshes[state.range(1)];
  const mesh::Mesh mesh = *axes == '\0' ? mesh::Mesh() : *mesh::Mesh::Parse(axes);
  sharding::Given given;
  if (mesh.num_axes() > 0) {
    given.inputs.insert_or_assign("x", *mesh::Layout::BatchSharded(mesh, "batch", 2));
  }
  const auto layers = static_cast<int>(state.range(0));
  double all = std::numeric_limits<double>::max(), verify = all;
  int64_t ops = 0;
  for (auto _ : state) {
    const double begin = ProcessorSeconds();
    const program::Program program = TrainStep(layers);
    auto partitioned = sharding::Shard(program, mesh, given);
    MT_CHECK(partitioned.ok());
    const auto plan = plan::MakePlan(*std::move(partitioned));
    MT_CHECK(plan.ok());
    all = std::min(all, ProcessorSeconds() - begin);
    ops = static_cast<int64_t>(program.ops.size());
    state.PauseTiming();
    const double verifying = ProcessorSeconds();
    MT_CHECK(plan::Verify(*plan, /*overlap=*/false).ok());
    verify = std::min(verify, ProcessorSeconds() - verifying);
    state.ResumeTiming();
  }
  state.counters["ops"] = static_cast<double>(ops);
  state.counters["plan_seconds"] = all;
  state.counters["verify_percent"] = 100 * verify / all;
}
BENCHMARK(Layers)
    ->ArgNames({"layers", "axes"})
    ->Args({3, 1})
    ->Args({56, 3})
    ->Args({100, 1})
    ->Args({200, 1})
    ->Args({1000, 0})
    ->Args({1000, 1})
    ->Args({1000, 3})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace meshtrain::bench
