// One instruction set for the process. It is settled once in a process' life, so each test settles
// in a process of its own.
#include "runtime/device/arithmetic.h"

#include <dnnl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/plan/plan.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

class InstructionSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
#if !defined(__x86_64__)
    GTEST_SKIP() << "not built: one set alone on this kind of processor";
#endif
    if (cpu::FindKernels("v3") == nullptr) GTEST_SKIP() << "no device: this processor has one set";
  }
};

// Ends the process: 0 where `expected` holds, else 1 with `what`.
[[noreturn]] void End(bool expected, const std::string& what = "") {
  if (!expected) std::fprintf(stderr, "%s\n", what.c_str());
  std::_Exit(expected ? 0 : 1);
}

void Multiply() {
  const float a[] = {1, 2, 3, 4};
  float c[4];
  cpu::Gemm({.m = 2, .n = 2, .k = 2, .lda = 2, .ldb = 2, .ldc = 2}, a, a, c);
}

TEST_F(InstructionSetTest, WhatIsSettledIsOneDnnsToo) {
  const auto settle = [] {
    if (!(AvailableInstructionSets().least == "v2")) End(false, "least");
    const Status settled = SettleInstructionSet("v3");
    if (!settled.ok()) End(false, settled.ToString());
    if (AvailableInstructionSets() != InstructionSets{"v3", "v3"}) End(false, "not settled");
    Multiply();
    const Status again = SettleInstructionSet("v3");
    if (!again.ok()) End(false, again.ToString());
    const Status other = SettleInstructionSet("v2");
    End(std::string(cpu::ActiveKernels().name) == "v3" &&
            dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx2 &&
            other.code() == StatusCode::kFailedPrecondition &&
            other.message().find("got: v3 is in use already") != std::string::npos,
        other.ToString());
  };
  EXPECT_EXIT(settle(), ExitedWithCode(0), "");
}

TEST_F(InstructionSetTest, TheFirstUseSettlesTheBestWithinTheLimit) {
  const auto use = [] {
    const Status limited = LimitInstructionSet("v2");
    if (!limited.ok()) End(false, limited.ToString());
    if (AvailableInstructionSets() != InstructionSets{"v2", "v2"}) End(false, "not limited");
    Multiply();
    End(std::string(cpu::ActiveKernels().name) == "v2" &&
            dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_sse41,
        cpu::ActiveKernels().name);
  };
  EXPECT_EXIT(use(), ExitedWithCode(0), "");
  const auto late = [] {
    Multiply();
    const Status limited = LimitInstructionSet("v2");
    End(limited.code() == StatusCode::kFailedPrecondition, limited.ToString());
  };
  EXPECT_EXIT(late(), ExitedWithCode(0), "");
}

TEST_F(InstructionSetTest, WhoChoseForOneDnnBeforeIsAnError) {
  const auto settle = [] {
    if (dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41) != dnnl_success) End(false, "oneDNN");
    const Status settled = SettleInstructionSet("v3");
    End(settled.code() == StatusCode::kFailedPrecondition &&
            settled.message().find("oneDNN") != std::string::npos &&
            AvailableInstructionSets().least == "v2",
        settled.ToString());
  };
  EXPECT_EXIT(settle(), ExitedWithCode(0), "");
}

// [33,3000] x [3000,10] on a backend of so many threads: of oneDNN's AVX2 products one whose bits
// depend on how it is cut.
std::vector<float> ProductOn(int threads) {
  const auto backend = MakeCpuBackend({.threads = threads});
  program::Builder b("product");
  const program::Value x = b.Input("x", {mesh::DType::kF32, {33, 3000}});
  const program::Value y = b.Input("y", {mesh::DType::kF32, {3000, 10}});
  b.Output("z", program::MatMul(x, y));
  const plan::Plan plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
  const int64_t rank = 0;
  const auto executable = *backend->Compile(plan, {&rank, 1}, nullptr);
  const auto left = *backend->Allocate(0, {mesh::DType::kF32, {33, 3000}}),
             right = *backend->Allocate(0, {mesh::DType::kF32, {3000, 10}}),
             product = *backend->Allocate(0, {mesh::DType::kF32, {33, 10}});
  for (Buffer* buffer : {left.get(), right.get()}) {
    auto* values = reinterpret_cast<float*>(buffer->host());
    for (int64_t i = 0; i < buffer->bytes() / 4; ++i) {
      values[i] = std::sin(static_cast<float>(i));
    }
  }
  const DeviceBuffers buffers{
      .inputs = {left.get(), right.get()}, .states = {}, .outputs = {product.get()}};
  if (!executable->Run({&buffers, 1}).ok()) End(false, "run");
  const auto* values = reinterpret_cast<const float*>(product->host());
  return {values, values + 33 * 10};
}

TEST_F(InstructionSetTest, SettledProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  for (const char* set : {"v2", "v3", "v4"}) {
    if (cpu::FindKernels(set) == nullptr) continue;
    const auto multiply = [&] {
      if (!SettleInstructionSet(set).ok()) End(false, "settle");
      SettleProductThreads(3);
      const std::vector<float> one = ProductOn(1);
      for (const int threads : {2, 3, 8}) {
        if (ProductOn(threads) != one) End(false, std::to_string(threads) + " threads");
      }
      End(true);
    };
    EXPECT_EXIT(multiply(), ExitedWithCode(0), "") << set;
  }
}

// --- the errors that docs/numerics.md states, in units of 2^-24 of the sum of the magnitudes

enum class Numbers : uint8_t { kSigned, kPositive, kEqual };
constexpr const char* kNumbers[] = {"signed", "positive", "equal"};

// The i-th of numbers between 0 and 1 that look random (SplitMix64; S. Vigna, public domain).
float UnitAt(uint64_t i) {
  uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

// The worst of some elements of c = a b, [m,k] x [k,n].
double ProductError(Numbers numbers, int64_t m, int64_t k, int64_t n, bool transposed) {
  std::vector<float> a(m * k), b(k * n), c(m * n);
  const auto number = [&](uint64_t i) {
    if (numbers == Numbers::kEqual) return 0.1f;
    const float unit = UnitAt(i);
    return numbers == Numbers::kPositive ? unit : 2 * unit - 1;
  };
  for (size_t i = 0; i < a.size(); ++i) a[i] = number(i);
  for (size_t i = 0; i < b.size(); ++i) b[i] = number(i + a.size());
  cpu::Gemm({.m = m,
             .n = n,
             .k = k,
             .transpose_a = transposed,
             .lda = transposed ? m : k,
             .ldb = n,
             .ldc = n},
            a.data(), b.data(), c.data());
  double worst = 0;
  for (int64_t i = 0; i < m; i += 5) {
    for (int64_t j = 0; j < n; j += 5) {
      double sum = 0, magnitude = 0;
      for (int64_t l = 0; l < k; ++l) {
        const double p = static_cast<double>(transposed ? a[l * m + i] : a[i * k + l]) *
                         static_cast<double>(b[l * n + j]);
        sum += p;
        magnitude += std::fabs(p);
      }
      worst = std::max(worst, std::fabs(static_cast<double>(c[i * n + j]) - sum) / magnitude);
    }
  }
  return worst * 0x1p24;
}

TEST_F(InstructionSetTest, ProductsOfF32AreOffByWhatIsStated) {
  for (const char* set : {"v2", "v3", "v4"}) {
    if (cpu::FindKernels(set) == nullptr) continue;
    const auto measure = [&] {
      if (!SettleInstructionSet(set).ok()) End(false, "settle");
      const cpu::OneOpenMpThread one;
      bool held = true;
      for (const int64_t k : {16, 64, 256, 1024, 4096, 16384, 65536, 262144}) {
        const auto terms = static_cast<double>(k);
        for (const Numbers numbers : {Numbers::kSigned, Numbers::kPositive, Numbers::kEqual}) {
          double whole = 0, vector = 0;
          for (const bool transposed : {false, true}) {
            whole = std::max(whole, ProductError(numbers, 16, k, 16, transposed));
            vector = std::max({vector, ProductError(numbers, 1, k, 16, transposed),
                               ProductError(numbers, 16, k, 1, transposed)});
          }
          const double bound = numbers == Numbers::kSigned     ? 4
                               : numbers == Numbers::kPositive ? 16 + std::sqrt(terms) / 16
                                                               : 64 + terms / 512;
          const double vector_bound = numbers == Numbers::kEqual      ? 4 + terms / 4
                                      : numbers == Numbers::kPositive ? 16 + std::sqrt(terms)
                                                                      : 4;
          const bool well = whole <= bound && vector <= vector_bound;
          held = held && well;
          std::fprintf(stderr,
                       "%s K %lld, %s numbers: %.2f (at most %.1f); vectors %.2f (%.1f)%s\n", set,
                       static_cast<long long>(k), kNumbers[static_cast<int>(numbers)], whole, bound,
                       vector, vector_bound, well ? "" : " TOO MUCH");
        }
      }
      End(held, "an error is larger than docs/numerics.md says");
    };
    EXPECT_EXIT(measure(), ExitedWithCode(0), "");
  }
}

TEST_F(InstructionSetTest, SetsAreInOrder) {
  EXPECT_TRUE(*IsLesserInstructionSet("v2", "v3"));
  EXPECT_TRUE(*IsLesserInstructionSet("v3", "v4"));
  EXPECT_FALSE(*IsLesserInstructionSet("v3", "v3"));
  EXPECT_FALSE(*IsLesserInstructionSet("v4", "v2"));
  EXPECT_EQ(IsLesserInstructionSet("v3", "v9").status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(IsLesserInstructionSet("v9", "v3").status().message(), HasSubstr("got: v9"));
  EXPECT_EQ(IsLesserInstructionSet("v3", "base").status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(LimitInstructionSet("v9").code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::device
