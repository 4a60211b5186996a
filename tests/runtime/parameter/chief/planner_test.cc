#include "runtime/parameter/chief/planner.h"

#include <gtest/gtest.h>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::TensorType;
using program::Builder;

const Parameter kW("w", TensorType{DType::kF32, {5, 2}}, nn::Initializer::Zeros());
const Parameter kB("b", TensorType{DType::kF32, {2}}, nn::Initializer::Zeros());

WorkerStep SampleStep(bool with_b) {
  Builder b("step");
  Builder::Scope scope(b);
  b.Output("loss", program::ReduceSum(b.Read(kW)) + program::ReduceSum(b.Read(kB)));
  b.Output(GradientName("w"), b.Read(kW));
  if (with_b) b.Output(GradientName("b"), b.Read(kB));
  return SplitStep(b.Build().value()).value();
}

Updater SgdUpdater() { return UpdaterOf(train::Sgd()); }

TEST(PlannerTest, AFunctionPullsAndPushesEachPartWhereItLies) {
  Planner planner(FixedShards{2}, 3, 0);
  const std::vector<Parameter> variables = {kW, kB};
  ASSERT_TRUE(planner.AddVariables(variables).ok());
  const WorkerStep step = SampleStep(true);
  const auto definitions = planner.AddUpdate("train", step.pushed, SgdUpdater());
  ASSERT_TRUE(definitions.ok()) << definitions.status().ToString();
  EXPECT_EQ(definitions->size(), 3u);
  const auto function = planner.MakeFunction(step, "train", {"loss"});
  ASSERT_TRUE(function.ok()) << function.status().ToString();
  ASSERT_EQ(function->pulls.size(), 2u);
  std::map<std::string, std::vector<PulledPart>> pulls;
  for (size_t i = 0; i < 2; ++i) pulls[step.program.states[i].name] = function->pulls[i];
  EXPECT_EQ(pulls["w"][1].shard, "w/part_1");
  EXPECT_EQ(pulls["w"][1].server, 1);
  EXPECT_EQ(pulls["w"][1].row, 3);
  EXPECT_EQ(pulls["b"][0].server, 2);
  // w/part_0 and b/part_1 share server 0.
  ASSERT_EQ(function->pushes.size(), 3u);
  ASSERT_EQ(function->pushes[0].parts.size(), 2u);
  EXPECT_EQ(function->pushes[0].parts[1].row, 1);
  EXPECT_EQ(function->pushes[0].parts[1].type, (TensorType{DType::kF32, {1}}));
  EXPECT_EQ(planner.states().at("w").size(), 2u);
  EXPECT_EQ(planner.states().at("w")[1].server, 1);
}

TEST(PlannerTest, RefusesWhatDoesNotFitAndStaysAsItWas) {
  Planner planner(Whole{}, 1, 0);
  const std::vector<Parameter> one = {kW};
  ASSERT_TRUE(planner.AddVariables(one).ok());
  EXPECT_EQ(planner.AddVariables(one).status().code(), StatusCode::kAlreadyExists);
  const WorkerStep step = SampleStep(false);
  EXPECT_EQ(planner.MakeFunction(step, "train", {}).status().message(),
            "step step: expected variables of the servers, got: `b`");
  const std::vector<Parameter> other = {kB};
  ASSERT_TRUE(planner.AddVariables(other).ok());
  EXPECT_EQ(planner.MakeFunction(step, "train", {}).status().message(),
            "step step: expected a known update, got: `train`");
  ASSERT_TRUE(planner.AddUpdate("train", step.pushed, SgdUpdater()).ok());
  EXPECT_EQ(planner.AddUpdate("train", step.pushed, SgdUpdater()).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(planner.MakeFunction(step, "train", {"loss"}).ok());
  EXPECT_EQ(planner.MakeFunction(step, "train", {"gradient/w"}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(planner.MakeFunction(SampleStep(true), "train", {}).status().code(),
            StatusCode::kInvalidArgument)
      << "it pushes b too";
  EXPECT_EQ(planner.ShardsOf("b").size(), 1u);
  EXPECT_TRUE(planner.ShardsOf("c").empty());
}

TEST(PlannerTest, AShardsNameMayNotBeAVariables) {
  Planner planner(FixedShards{2}, 1, 0);
  const std::vector<Parameter> cut = {kW};
  ASSERT_TRUE(planner.AddVariables(cut).ok());
  const std::vector<Parameter> clash = {
      Parameter("w/part_0", TensorType{DType::kF32, {}}, nn::Initializer::Zeros())};
  EXPECT_EQ(planner.AddVariables(clash).status().code(), StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace meshtrain::parameter
