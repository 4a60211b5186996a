#include "runtime/device/backend.h"

#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/null/null_backend.h"
#include "runtime/program/ops.h"
#include "tests/contract/backend_programs.h"
#include "tests/contract/backend_suite.h"
#include "tests/contract/run_plan.h"

namespace meshtrain::device {
namespace {

BackendFactory Cpu(int threads) {
  return {"cpu_" + std::to_string(threads), true,
          [threads] { return MakeCpuBackend({.threads = threads, .fenced = true}); }};
}

BackendFactory Discrete(int threads, uint64_t seed) {
  return {"discrete_" + std::to_string(threads), true,
          [=] { return *MakeDiscreteBackend({.threads = threads, .seed = seed}); }};
}

std::unique_ptr<Backend> CpuIsolated() {
  return MakeCpuBackend({.threads = 2, .isolated = true, .fenced = true});
}

// One thread; devices side by side on threads; one device spread over more threads than this
// machine may have.
INSTANTIATE_TEST_SUITE_P(Cpu, BackendSuite,
                         ::testing::Values(Cpu(1), Cpu(2), Cpu(5),
                                           BackendFactory{"cpu_isolated", true, CpuIsolated}),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Null, BackendSuite,
                         ::testing::Values(BackendFactory{"null", false,
                                                          [] { return MakeNullBackend(); }}),
                         BackendName);

INSTANTIATE_TEST_SUITE_P(Discrete, BackendSuite, ::testing::Values(Discrete(1, 1), Discrete(2, 7)),
                         BackendName);

// A chain joins constants that follow one another, where their product, or 1 / s, is as exact.
TEST(CpuBackendTest, ConstantsAreNotJoinedBeyondTheRangeOfTheType) {
  program::Builder b("scales");
  const program::Builder::Scope scope(b);
  const mesh::TensorType type{mesh::DType::kF32, {4}};
  const program::Value small = b.Input("small", type), large = b.Input("large", type);
  b.Output("grown", (small * 1e30) * 1e30);
  b.Output("shrunk", (large * 1e-30) * 1e-30);
  b.Output("zero", (small - small) / 1e-40);
  b.Output("by_large", large / 1e38);
  b.Output("joined", (small * 1e12) * 4.0 / 2.0);
  testing::StepInput input;
  for (const auto& [name, number] : {std::pair("small", 1e-25), std::pair("large", 1e35)}) {
    testing::Array x(type);
    for (testing::Number& v : x.at) v = number;
    input.inputs.insert_or_assign(name, x);
  }
  const auto backend = MakeCpuBackend({.threads = 1});
  const auto got = RunPlan(*backend, PlanOf(*b.Build(), "", {}), input);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  for (const auto& [name, want] :
       {std::pair("grown", 1e35), std::pair("shrunk", 1e-25), std::pair("zero", 0.0),
        std::pair("by_large", 1e-3), std::pair("joined", 2e-13)}) {
    for (const testing::Number v : got->outputs.at(name).at) {
      EXPECT_NEAR(static_cast<double>(v), want, 1e-6 * want) << name;
    }
  }
}

TEST(NullBackendTest, CountsBytes) {
  const auto backend = MakeNullBackend();
  {
    const auto a = *backend->Allocate(0, {mesh::DType::kU8, {100}}),
               b = *backend->Allocate(0, {mesh::DType::kU8, {50}});
    std::vector<std::byte> bytes(30);
    ASSERT_TRUE(backend->CopyIn(bytes, *a).ok());
    ASSERT_TRUE(backend->CopyOut(*b, std::span(bytes).first(7)).ok());
  }
  const auto c = *backend->Allocate(0, {mesh::DType::kU8, {10}});
  const NullCounts& counts = CountsOfNullBackend(*backend);
  EXPECT_EQ(counts.allocated_bytes, 10);
  EXPECT_EQ(counts.peak_bytes, 150);
  EXPECT_EQ(counts.copied_in_bytes, 30);
  EXPECT_EQ(counts.copied_out_bytes, 7);
}

}  // namespace
}  // namespace meshtrain::device
