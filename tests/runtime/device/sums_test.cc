// What a sum of many numbers may be off by (docs/numerics.md): 1e-6 of the sum of the magnitudes
// in f32, whatever is summed over, whatever the shape, and the same bits on any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device {
namespace {

using mesh::Dims;
using mesh::DType;

constexpr double kBound = 1e-6;
constexpr double kSoftmaxBound = 2e-6;  // beside the sum an exponential and a quotient

// The i-th of numbers between 0 and 1 that look random (SplitMix64; S. Vigna, public domain).
float UnitAt(uint64_t i) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

// All equal: then every rounding goes the same way.
enum class Numbers : uint8_t { kPositive, kSigned, kEqual };
float NumberAt(Numbers kind, int64_t i) {
  if (kind == Numbers::kEqual) return 0.1f;
  const float unit = UnitAt(static_cast<uint64_t>(i));
  return kind == Numbers::kPositive ? unit : unit - 0.5f;
}

// A sum of an input is a step of its own; one of what a chain makes is often a part of the chain.
enum class Of : uint8_t { kInput, kChain };

// ReduceSum(x, axes) on the CPU, for each of `sums`; of a chain ReduceSum(-x, axes).
class Summing {
 public:
  Summing(const Dims& dims, const std::vector<std::vector<int64_t>>& sums, int threads,
          Of of = Of::kInput)
      : backend_(MakeCpuBackend({.threads = threads})) {
    program::Builder b("sum");
    const program::Value x = b.Input("x", {DType::kF32, dims});
    const program::Value summed = of == Of::kChain ? -x : x;
    for (size_t i = 0; i < sums.size(); ++i) {
      b.Output("sum" + std::to_string(i), program::ReduceSum(summed, sums[i]));
    }
    plan_ = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
    const int64_t rank = 0;
    executable_ = *backend_->Compile(plan_, {&rank, 1}, nullptr);
    in_ = *backend_->Allocate(0, {DType::kF32, dims});
    for (const program::Port& output : plan_.local().outputs) {
      out_.push_back(*backend_->Allocate(0, plan_.local().type(output.value)));
    }
  }
  float* input() { return reinterpret_cast<float*>(in_->host()); }
  std::vector<std::vector<float>> Run() {
    DeviceBuffers buffers{.inputs = {in_.get()}, .states = {}, .outputs = {}};
    for (const auto& out : out_) buffers.outputs.push_back(out.get());
    EXPECT_TRUE(executable_->Run({&buffers, 1}).ok());
    std::vector<std::vector<float>> all;
    for (const auto& out : out_) {
      const auto* sums = reinterpret_cast<const float*>(out->host());
      all.emplace_back(sums, sums + out->bytes() / 4);
    }
    return all;
  }

 private:
  std::unique_ptr<Backend> backend_;
  plan::Plan plan_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<Buffer> in_;
  std::vector<std::unique_ptr<Buffer>> out_;
};

// Sums over `axes` in f64, and those of the magnitudes.
struct Exact {
  std::vector<double> sums, magnitudes;
};
Exact ExactSums(const float* x, const Dims& dims, const std::vector<int64_t>& axes) {
  std::vector<int64_t> step(dims.size(), 0);
  int64_t n = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    if (!axes.empty() && std::find(axes.begin(), axes.end(), d) == axes.end()) {
      step[d] = n;
      n *= dims[d];
    }
  }
  Exact exact{std::vector<double>(n), std::vector<double>(n)};
  std::vector<int64_t> at(dims.size(), 0);
  int64_t to = 0;
  for (int64_t i = 0; i < mesh::NumElements(dims); ++i) {
    exact.sums[to] += x[i];
    exact.magnitudes[to] += std::fabs(x[i]);
    for (size_t d = dims.size(); d-- > 0;) {
      to += step[d];
      if (++at[d] < dims[d]) break;
      to -= step[d] * dims[d];
      at[d] = 0;
    }
  }
  return exact;
}

double WorstError(const std::vector<float>& got, const Exact& exact) {
  EXPECT_EQ(got.size(), exact.sums.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::fabs(got[i] - exact.sums[i]) / exact.magnitudes[i]);
  }
  return worst;
}

TEST(SumsTest, AMillionRowsHoldOverRowsOverColumnsAndOverAll) {
  constexpr int64_t kRows = 1'000'000, kColumns = 128;
  Summing summing({kRows, kColumns}, {{0}, {1}, {}}, 2);
  // Positive, so that the sums are those of the magnitudes too.
  Exact rows, columns, all;
  rows.sums.resize(kColumns);
  all.sums.resize(1);
  for (int64_t r = 0; r < kRows; ++r) {
    double row = 0;
    for (int64_t j = 0; j < kColumns; ++j) {
      const float x = UnitAt(static_cast<uint64_t>(r * kColumns + j));
      summing.input()[r * kColumns + j] = x;
      rows.sums[j] += x;
      row += x;
    }
    columns.sums.push_back(row);
    all.sums[0] += row;
  }
  const auto got = summing.Run();
  const Exact* want[] = {&rows, &columns, &all};
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(WorstError(got[i], {want[i]->sums, want[i]->sums}), kBound) << "sum " << i;
  }
}

TEST(SumsTest, OddShapesHoldAndGiveTheSameBitsOnAnyNumberOfThreads) {
  struct Case {
    Dims dims;
    std::vector<int64_t> axes;
  };
  const Case cases[] = {
      {{100'003, 1}, {0}},      {{100'003, 7}, {0}},    {{100'003, 7}, {1}},
      {{20'011, 129}, {0}},     {{20'011, 129}, {1}},   {{7, 100'003}, {1}},
      {{7, 100'003}, {0}},      {{13, 40'009, 3}, {1}}, {{13, 40'009, 3}, {0, 2}},
      {{5, 8'191, 17}, {0, 1}}, {{101, 103, 107}, {}},  {{100'003, 65}, {0}},
      {{33, 64}, {0}},          {{17, 130}, {0}},       {{3, 5}, {1}},
      {{1, 8'193}, {1}},        {{997, 1'024}, {1}},    {{997, 2'048}, {0}},
  };
  for (const Case& c : cases) {
    for (const Numbers kind : {Numbers::kPositive, Numbers::kSigned, Numbers::kEqual}) {
      for (const Of of : {Of::kInput, Of::kChain}) {
        std::string what = of == Of::kChain ? "in a chain, sum over" : "sum over";
        for (const int64_t axis : c.axes) what += " " + std::to_string(axis);
        what += " of " + mesh::TensorType{DType::kF32, c.dims}.ToString();
        SCOPED_TRACE(what);
        std::vector<float> first;
        for (const int threads : {1, 2, 3, 7}) {
          Summing summing(c.dims, {c.axes}, threads, of);
          for (int64_t i = 0; i < mesh::NumElements(c.dims); ++i) {
            summing.input()[i] = NumberAt(kind, i);
          }
          std::vector<float> got = summing.Run()[0];
          if (of == Of::kChain) {
            for (float& sum : got) sum = -sum;
          }
          if (threads > 1) {
            EXPECT_EQ(got, first) << threads << " threads";
            continue;
          }
          first = got;
          EXPECT_LE(WorstError(got, ExactSums(summing.input(), c.dims, c.axes)), kBound);
        }
      }
    }
  }
}

TEST(SumsTest, WhatOverflowsOnTheWayThroughAllIsNoInfinity) {
  // The sums of some blocks cancel: what is kept between blocks has f64's range.
  const Dims dims = {64, 130};
  Summing summing(dims, {{0}}, 1);
  for (int64_t i = 0; i < mesh::NumElements(dims); ++i) {
    summing.input()[i] = i / 130 < 32 ? 2e37f : -2e37f;
  }
  const auto got = summing.Run();
  for (const float sum : got[0]) EXPECT_EQ(sum, 0.0f);
}

// Every set, with rows that overlap: a million rows of 128 in 4 MB.
class SetSumsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    k_ = cpu::FindKernels(GetParam());
    if (k_ == nullptr) GTEST_SKIP() << "this processor or build lacks " << GetParam();
  }
  const cpu::Kernels* k_ = nullptr;
};

TEST_P(SetSumsTest, RowsHold) {
  constexpr int64_t kRows = 1'000'000;
  for (const Numbers kind : {Numbers::kPositive, Numbers::kSigned, Numbers::kEqual}) {
    for (const int64_t columns : {1, 3, 64, 100, 128}) {
      std::vector<float> x(kRows + columns - 1);
      for (size_t i = 0; i < x.size(); ++i) x[i] = NumberAt(kind, static_cast<int64_t>(i));
      std::vector<float> got(columns);
      k_->fold_rows(cpu::Fold::kSum, cpu::Type::kF32, got.data(), x.data(), kRows, 1, columns,
                    true);
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t r = 0; r < kRows; ++r) {
          sum += x[r + j];
          magnitude += std::fabs(x[r + j]);
        }
        ASSERT_LE(std::fabs(got[j] - sum), kBound * magnitude) << columns << " columns, " << j;
      }
    }
  }
}

TEST_P(SetSumsTest, ColumnsSumAlikeWhateverStandsBesideThem) {
  // 61 rows: whole blocks, then one that is cut short within a group.
  constexpr int64_t kRows = 61, kColumns = 171;
  std::vector<float> x(kRows * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = NumberAt(Numbers::kSigned, static_cast<int64_t>(i));
  std::vector<float> all(kColumns);
  k_->fold_rows(cpu::Fold::kSum, cpu::Type::kF32, all.data(), x.data(), kRows, kColumns, kColumns,
                true);
  for (int64_t j = 0; j < kColumns; ++j) {
    float one = 0;
    k_->fold_rows(cpu::Fold::kSum, cpu::Type::kF32, &one, x.data() + j, kRows, kColumns, 1, true);
    ASSERT_EQ(one, all[j]) << j;
  }
}

TEST_P(SetSumsTest, SoftmaxAndCrossEntropiesHoldForManyClasses) {
  // One class is e^0.1 times as likely as each of the others, whose exponentials are equal: what
  // their sum is off by shows in all results.
  constexpr int64_t kClasses = 1'000'003;
  constexpr int32_t kLabel = 17;
  std::vector<float> logits(kClasses, -3.7f);
  logits[0] = -3.6f;
  const double other = std::exp(static_cast<double>(-3.7f) - static_cast<double>(-3.6f));
  const double sum = 1 + (kClasses - 1) * other;
  std::vector<float> p(kClasses);
  k_->softmax(cpu::Type::kF32, false, p.data(), logits.data(), 1, kClasses);
  ASSERT_NEAR(p[0], 1 / sum, kSoftmaxBound / sum);
  for (int64_t j = 1; j < kClasses; ++j)
    ASSERT_NEAR(p[j], other / sum, kSoftmaxBound * other / sum);
  float loss = 0;
  k_->sparse_xent(cpu::Type::kF32, cpu::Type::kI32, &loss, logits.data(), &kLabel, 1, kClasses);
  EXPECT_NEAR(loss, std::log(sum / other), 2e-6);  // of 13.8, in f32
  const float one = 1;
  k_->sparse_xent_grad(cpu::Type::kF32, cpu::Type::kI32, p.data(), &one, logits.data(), &kLabel, 1,
                       kClasses);
  ASSERT_NEAR(p[0], 1 / sum, kSoftmaxBound / sum);
  ASSERT_NEAR(p[kLabel], other / sum - 1, 1e-7);
}

INSTANTIATE_TEST_SUITE_P(Isa, SetSumsTest, ::testing::Values("v2", "v3", "v4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace meshtrain::device
