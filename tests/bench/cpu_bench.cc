// The CPU backend's parts: products against one thread of oneDNN, the fused Adam update against a
// loop written by hand, convolutions, random numbers, what a fork and a join cost. `items` are
// multiplications and additions, elements or loops.
//   cpu_bench --benchmark_filter=Gemm
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/device/backend.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/ops/window.h"
#include "runtime/device/cpu/philox.h"
#include "runtime/device/cpu/pool.h"
#include "runtime/plan/plan.h"
#include "runtime/program/ops.h"
#include "tests/bench/hand_loops.h"

namespace meshtrain::bench {
namespace {

using benchmark::State;
using device::cpu::GemmPiece;
using device::cpu::GemmShape;
using device::cpu::GemmSplit;
using device::cpu::Pool;
using program::DType;
using program::Value;
using program::Variable;

// --- products: threads, m, k, n, transposed a, transposed b

void Gemm(State& state) {
  Pool pool(static_cast<int>(state.range(0)));
  GemmShape s{.m = state.range(1),
              .n = state.range(3),
              .k = state.range(2),
              .transpose_a = state.range(4) != 0,
              .transpose_b = state.range(5) != 0};
  s.lda = s.transpose_a ? s.m : s.k;
  s.ldb = s.transpose_b ? s.k : s.n;
  s.ldc = s.n;
  std::vector<float> a(s.m * s.k, 0.5f), b(s.k * s.n, 0.25f), c(s.m * s.n);
  const device::cpu::OneOpenMpThread one;
  const GemmSplit split = SplitGemm(s, pool.threads());
  for (auto _ : state) {
    pool.Run(split.pieces, [&](int64_t i) {
      const GemmPiece p = PieceOf(s, split, i);
      device::cpu::Gemm(p.shape, a.data() + p.a, b.data() + p.b, c.data() + p.c);
    });
    benchmark::ClobberMemory();
  }
  state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(s.m * s.n * s.k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}
void MlpShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "m", "k", "n", "ta", "tb"});
  const int64_t layers[][2] = {{784, 700}, {700, 500}, {500, 10}};
  for (const int64_t threads : {1, 2}) {
    for (const auto& [in, out] : layers) {
      b->Args({threads, 128, in, out, 0, 0});                 // forward
      b->Args({threads, in, 128, out, 1, 0});                 // dW
      if (in != 784) b->Args({threads, 128, out, in, 0, 1});  // dX
    }
  }
}
BENCHMARK(Gemm)->Apply(MlpShapes)->UseRealTime();

// --- the optimizer's loop

constexpr int64_t kParameters = 784 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10;

void AdamByHand(State& state) {
  Pool pool(static_cast<int>(state.range(0)));
  std::vector<float> g(kParameters, 0.01f), m(kParameters), v(kParameters), p(kParameters);
  const AdamRates rates{.correct1 = 0.1f, .correct2 = 0.001f};
  for (auto _ : state) {
    pool.For(kParameters, 16384, [&](int64_t begin, int64_t end) {
      HandAdam(rates, g.data(), m.data(), v.data(), p.data(), begin, end);
    });
  }
  state.SetItemsProcessed(state.iterations() * kParameters);
}
BENCHMARK(AdamByHand)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

// The same recorded as ops, planned and run.
void AdamPlanned(State& state) {
  program::Builder b("adam");
  program::Builder::Scope scope(b);
  const Variable m("m", {DType::kF32, {kParameters}}), v("v", {DType::kF32, {kParameters}}),
      p("p", {DType::kF32, {kParameters}}), t("t", {DType::kF32, {}});
  const Value g = b.Input("g", {DType::kF32, {kParameters}});
  AssignAdd(t, 1.0);
  Assign(m, 0.9 * b.Read(m) + (1 - 0.9) * g);
  Assign(v, 0.999 * b.Read(v) + (1 - 0.999) * Square(g));
  const Value m_hat = b.Read(m) / (1.0 - program::Pow(0.9, b.Read(t)));
  const Value v_hat = b.Read(v) / (1.0 - program::Pow(0.999, b.Read(t)));
  AssignSub(p, 1e-3 * m_hat / (Sqrt(v_hat) + 1e-7));
  auto partitioned = sharding::Shard(*b.Build(), mesh::Mesh(), {});
  const auto plan = plan::MakePlan(std::move(*partitioned));
  const auto backend = device::MakeCpuBackend({.threads = static_cast<int>(state.range(0))});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(*plan, {&rank, 1}, nullptr);
  std::vector<std::unique_ptr<device::Buffer>> owned;
  device::DeviceBuffers buffers;
  const auto take = [&](const mesh::TensorType& type) {
    owned.push_back(*backend->Allocate(0, type));
    return owned.back().get();
  };
  buffers.inputs.push_back(take({DType::kF32, {kParameters}}));
  for (const auto& s : plan->local().states) {
    buffers.states.push_back(take(plan->local().type(s.entry)));
  }
  for (auto& x : std::span(reinterpret_cast<float*>(owned[0]->host()), kParameters)) x = 0.01f;
  for (auto _ : state) MT_CHECK(executable->Run({&buffers, 1}).ok());
  state.SetItemsProcessed(state.iterations() * kParameters);
}
BENCHMARK(AdamPlanned)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

// --- reductions: threads, rows, columns, the axis that is summed over; `items` are elements

void ReduceSum(State& state) {
  const int64_t rows = state.range(1), columns = state.range(2);
  program::Builder b("sum");
  const Value x = b.Input("x", {DType::kF32, {rows, columns}});
  b.Output("sum", program::ReduceSum(x, {state.range(3)}));
  const auto plan = plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  const auto backend = device::MakeCpuBackend({.threads = static_cast<int>(state.range(0))});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(*plan, {&rank, 1}, nullptr);
  const auto in = *backend->Allocate(0, {DType::kF32, {rows, columns}}),
             out = *backend->Allocate(0, {DType::kF32, {state.range(3) == 0 ? columns : rows}});
  for (auto& v : std::span(reinterpret_cast<float*>(in->host()), rows * columns)) v = 0.01f;
  const device::DeviceBuffers buffers{.inputs = {in.get()}, .states = {}, .outputs = {out.get()}};
  for (auto _ : state) MT_CHECK(executable->Run({&buffers, 1}).ok());
  state.SetItemsProcessed(state.iterations() * rows * columns);
}
// A chain that adds columns: the sums of (x - mean)^2, mean one element for each column.
void Squares(State& state) {
  const int64_t rows = state.range(1), columns = state.range(2);
  program::Builder b("squares");
  const Value x = b.Input("x", {DType::kF32, {rows, columns}});
  const Value mean = b.Input("mean", {DType::kF32, {columns}});
  b.Output("sums", program::ReduceSum(Square(x - mean), {0}));
  const auto plan = plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  const auto backend = device::MakeCpuBackend({.threads = static_cast<int>(state.range(0))});
  const int64_t rank = 0;
  const auto executable = *backend->Compile(*plan, {&rank, 1}, nullptr);
  const auto in = *backend->Allocate(0, {DType::kF32, {rows, columns}}),
             means = *backend->Allocate(0, {DType::kF32, {columns}}),
             out = *backend->Allocate(0, {DType::kF32, {columns}});
  for (auto& v : std::span(reinterpret_cast<float*>(in->host()), rows * columns)) v = 0.01f;
  const device::DeviceBuffers buffers{
      .inputs = {in.get(), means.get()}, .states = {}, .outputs = {out.get()}};
  for (auto _ : state) MT_CHECK(executable->Run({&buffers, 1}).ok());
  state.SetItemsProcessed(state.iterations() * rows * columns);
}
void SquaresShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "rows", "columns"});
  for (const int64_t threads : {1, 2}) {
    for (const int64_t columns : {16, 32, 64, 100, 256})
      b->Args({threads, (1 << 20) / columns, columns});
  }
}
BENCHMARK(Squares)->Apply(SquaresShapes)->UseRealTime();

void ReduceShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "rows", "columns", "axis"});
  for (const int64_t threads : {1, 2}) {
    for (const int64_t columns : {10, 500, 700}) b->Args({threads, 128, columns, 0});  // biases
    for (const int64_t axis : {0, 1}) {
      b->Args({threads, 4096, 512, axis});
      b->Args({threads, 100'000, 128, axis});
      b->Args({threads, 1'000'000, 7, axis});
    }
  }
}
BENCHMARK(ReduceSum)->Apply(ReduceShapes)->UseRealTime();

// --- convolutions 3x3 of equal padding: threads, way (0: what a program takes, 1: matrix products,
// 2: plain loops), product (0: forward, 1: gradient of the input, 2: of the kernel), examples,
// height and width, channels, features

void Convolution(State& state) {
  using device::cpu::ConvCall;
  device::cpu::WindowShape w;
  w.n = state.range(3);
  w.channels = state.range(5);
  w.features = state.range(6);
  w.elements = w.positions = {1, state.range(4), state.range(4)};
  w.size = {1, 3, 3};
  w.low = w.high = {0, 1, 1};
  const ConvCall call{.shape = w,
                      .kind = static_cast<device::cpu::ConvKind>(state.range(2)),
                      .a = 0,
                      .b = 1,
                      .out = 2,
                      .threads = static_cast<int>(state.range(0))};
  const auto kernel = state.range(1) == 0   ? device::cpu::MakeConvKernel<float>(call)
                      : state.range(1) == 1 ? device::cpu::MakeConvProducts<float>(call)
                                            : device::cpu::MakeConvLoops<float>(call);
  const int64_t elements = w.n * w.elements_of_one() * w.channels;
  const int64_t positions = w.n * w.positions_of_one() * w.features;
  const int64_t most = std::max({elements, positions, 9 * w.channels * w.features});
  std::vector<float> a(most, 0.5f), b(most, 0.25f), out(most);
  std::vector<float> scratch(kernel->scratch_bytes() / 4 + 16);
  std::byte* at[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data()),
                     reinterpret_cast<std::byte*>(out.data())};
  auto* begin = reinterpret_cast<std::byte*>(scratch.data());
  begin += (64 - reinterpret_cast<uintptr_t>(begin) % 64) % 64;
  Pool pool(call.threads);
  const device::cpu::OneOpenMpThread one;
  for (auto _ : state) kernel->Run({.at = at, .scratch = begin, .pool = &pool});
  state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(w.n * w.products_of_one()),
                                               benchmark::Counter::kIsIterationInvariantRate);
}
void ConvShapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"threads", "way", "product", "n", "size", "channels", "features"});
  const int64_t layers[][4] = {{128, 28, 1, 16},
                               {128, 14, 16, 32},  // the peers' CNN
                               {64, 32, 16, 16},
                               {64, 16, 32, 32},
                               {64, 8, 64, 64}};  // ResNet
  for (const int64_t threads : {1, 2}) {
    for (const auto& [n, size, channels, features] : layers) {
      for (const int64_t product : {0, 1, 2}) {
        for (const int64_t way : {0, 1, 2}) {
          b->Args({threads, way, product, n, size, channels, features});
        }
      }
    }
  }
}
BENCHMARK(Convolution)->Apply(ConvShapes)->UseRealTime();

// --- random numbers, fork and join

void Uniform(State& state) {
  Pool pool(static_cast<int>(state.range(0)));
  std::vector<float> out(kParameters);
  const auto key = device::cpu::PhiloxFromSeed(22, 23);
  for (auto _ : state) {
    pool.For(kParameters, 8192, [&](int64_t begin, int64_t end) {
      device::cpu::FillUniform(key, -0.1f, 0.1f, begin, std::span(out).subspan(begin, end - begin));
    });
  }
  state.SetItemsProcessed(state.iterations() * kParameters);
}
BENCHMARK(Uniform)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

void ForkJoin(State& state) {
  Pool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.Run(pool.threads(), [](int64_t i) { benchmark::DoNotOptimize(i); });
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(ForkJoin)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace meshtrain::bench
