// The rule prover (prover.h) over every registered op. MT_TEST_SEED replays a run.
#include "tests/contract/prover.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "runtime/program/registry.h"
#include "tests/contract/run_plan.h"
#include "tests/support/random/program.h"

namespace meshtrain::prover {
namespace {

uint64_t Seed() {
  const char* text = std::getenv("MT_TEST_SEED");
  return text == nullptr ? 20260101 : std::strtoull(text, nullptr, 10);
}

TEST(ProverTest, EveryRegisteredOpHasACase) {
  std::set<std::string> proved;
  for (const Case& c : AllCases()) {
    proved.insert(c.kind);
  }
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (!testing::IsOfWholePrograms(*def)) continue;
    EXPECT_TRUE(proved.contains(def->kind))
        << "op `" << def->kind << "` has no row in tests/support/op_cases/cases.cc";
  }
}

// Every device with memory of its own, every collective run.
Result<testing::StepResult> RunOnCpu(const sharding::Partitioned& partitioned,
                                     const testing::StepInput& input, uint64_t seed) {
  static const std::unique_ptr<device::Backend> cpu =
      device::MakeCpuBackend({.threads = 1, .fenced = true});
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, cpu->Lower(partitioned, {}));
  return device::RunPlan(*cpu, plan, input, {.seed = seed});
}

void ExpectSplitEqualsWhole(const Case& c, Extent extent) {
  const Tally tally = Prove(c, Seed(), RunOnCpu, 7, extent);
  for (const std::string& failure : tally.failures) {
    ADD_FAILURE() << "seed " << Seed() << ", " << failure;
  }
  EXPECT_GT(tally.runs, 20);
}

class RuleTest : public ::testing::TestWithParam<Case> {};

TEST_P(RuleTest, SplitEqualsWhole) { ExpectSplitEqualsWhole(GetParam(), Extent::kAll); }

class RuleOfTypeTest : public ::testing::TestWithParam<Case> {};

TEST_P(RuleOfTypeTest, SplitEqualsWhole) { ExpectSplitEqualsWhole(GetParam(), Extent::kFew); }

std::string TestName(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.name()) {
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  for (const program::TensorType& type : info.param.types()) {
    name += "_" + std::string(mesh::DTypeName(type.dtype));
  }
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Ops, RuleTest, ::testing::ValuesIn(AllCases()), TestName);
INSTANTIATE_TEST_SUITE_P(Ops, RuleOfTypeTest, ::testing::ValuesIn(TypeCases()), TestName);

}  // namespace
}  // namespace meshtrain::prover
