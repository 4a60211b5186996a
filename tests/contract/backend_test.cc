#include "runtime/device/backend.h"

#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/null/null_backend.h"
#include "tests/contract/backend_suite.h"

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
