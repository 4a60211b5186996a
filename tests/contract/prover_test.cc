// The rule prover (prover.h) over every registered op. MT_TEST_SEED replays a run.
#include "tests/contract/prover.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"
#include "runtime/program/registry.h"
#include "tests/contract/backend_suite.h"

namespace meshtrain::prover {
namespace {

uint64_t Seed() {
  const char* text = std::getenv("MT_TEST_SEED");
  return text == nullptr ? 20260101 : std::strtoull(text, nullptr, 10);
}

// Written by the partitioner alone; what they do is seen in every run of it.
bool IsPartitionersOwn(const program::OpDef& def) {
  return def.collective || def.kind == "shard_slice" || def.kind == "mask_pad";
}

TEST(ProverTest, EveryRegisteredOpHasACase) {
  std::set<std::string> proved;
  for (const Case& c : AllCases()) {
    proved.insert(c.kind());
    EXPECT_NE(program::Registry::Standard().Find(c.kind()), nullptr) << c.name << ": no such op";
  }
  for (const program::OpDef* def : program::Registry::Standard().All()) {
    if (IsPartitionersOwn(*def)) continue;
    EXPECT_TRUE(proved.contains(def->kind))
        << "op `" << def->kind << "` has no row in tests/contract/prover_cases.cc";
  }
}

TEST(ProverTest, CasesHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Case& c : AllCases()) EXPECT_TRUE(names.insert(c.name).second) << c.name;
}

// Every device with memory of its own, every collective run.
Result<testing::StepResult> RunOnCpu(const sharding::Partitioned& partitioned,
                                     const testing::StepInput& input, uint64_t seed) {
  static const std::unique_ptr<device::Backend> cpu = device::MakeCpuBackend({.threads = 1});
  MT_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(partitioned));
  return device::RunPlan(*cpu, plan, input, {.seed = seed});
}

class RuleTest : public ::testing::TestWithParam<Case> {};

TEST_P(RuleTest, SplitEqualsWhole) {
  const Tally tally = Prove(GetParam(), Seed(), RunOnCpu, 7);
  for (const std::string& failure : tally.failures) {
    ADD_FAILURE() << "seed " << Seed() << ", " << failure;
  }
  EXPECT_GT(tally.runs, 20);
}

std::string TestName(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.name) {
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, RuleTest, ::testing::ValuesIn(AllCases()), TestName);

}  // namespace

// What googletest prints as the parameter.
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

}  // namespace meshtrain::prover
