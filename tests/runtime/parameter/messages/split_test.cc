// What a step becomes on a worker and on its servers, read as text.
#include "runtime/parameter/messages/split.h"

#include <gtest/gtest.h>

#include "runtime/nn/layers.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::TensorType;
using program::Builder;
using program::Value;

std::vector<std::string> Names(const std::vector<program::Port>& ports) {
  std::vector<std::string> names;
  for (const program::Port& p : ports) names.push_back(p.name);
  return names;
}

// loss = sum(x @ w), w's gradient handed over, a count and a mean assigned.
Program SampleStep() {
  const program::Variable w("w", {DType::kF32, {2, 1}});
  const program::Variable n("n", {DType::kI64, {}});
  const program::Variable mean("mean", {DType::kF32, {2}});
  Builder b("step");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {4, 2}});
  const Value loss = ReduceSum(MatMul(x, w));
  const program::Variable wrt[] = {w};
  b.Output(GradientName("w"), b.Gradient(loss, wrt)[0]);
  b.Output("loss", loss);
  program::AssignAdd(n, 1);
  program::Assign(mean, mean * 0.9 + program::ReduceMean(x, {0}) * 0.1);
  return b.Build().value();
}

TEST(SplitStepTest, AWorkerReadsAndHandsOver) {
  const auto split = SplitStep(SampleStep());
  ASSERT_TRUE(split.ok()) << split.status().ToString();
  EXPECT_EQ(split->outputs, 1);
  EXPECT_EQ(Names(split->program.outputs),
            (std::vector<std::string>{"loss", "gradient/w", "delta/n", "delta/mean"}));
  std::vector<Pushed> want = {{"w", true, 1}, {"n", false, 2}, {"mean", false, 3}};
  EXPECT_EQ(split->pushed, want);
  for (const program::State& s : split->program.states) EXPECT_EQ(s.entry, s.exit) << s.name;
}

TEST(SplitStepTest, RefusesWhatAServerCouldNotDo) {
  const program::Variable w("w", {DType::kF32, {2}});
  const program::Variable flag("flag", {DType::kBool, {}});
  const auto build = [&](const std::function<void(Builder&)>& record) {
    Builder b("step");
    Builder::Scope scope(b);
    record(b);
    return SplitStep(b.Build().value()).status();
  };
  EXPECT_EQ(build([&](Builder& b) { b.Output(GradientName("v"), b.Read(w)); }).message(),
            "step step: expected gradients of variables that it reads, got: one of `v`");
  EXPECT_EQ(
      build([&](Builder& b) { b.Output(GradientName("w"), program::ReduceSum(w)); }).message(),
      "step step: gradient of `w`: expected f32[2], got: f32[]");
  EXPECT_EQ(build([&](Builder& b) {
              b.Output(GradientName("w"), b.Read(w));
              program::AssignAdd(w, 1);
            }).message(),
            "step step: variable `w`: expected a gradient or an assignment, got: both");
  EXPECT_EQ(build([&](Builder& b) { b.Assign(flag, program::LogicalNot(flag)); }).code(),
            StatusCode::kInvalidArgument);
}

struct Recipe {
  train::Recipe recipe;
  std::shared_ptr<train::Optimizer> optimizer;
};

Recipe DenseRecipe(std::shared_ptr<train::Optimizer> optimizer) {
  Recipe out;
  out.optimizer = optimizer;
  out.recipe.model = std::make_shared<nn::Dense>(4, nn::DenseOptions{.name = "dense"});
  out.recipe.heads[0].loss = train::losses::MeanSquaredError();
  out.recipe.optimizer = GradientTap(*optimizer);
  return out;
}

TEST(BuildUpdateTest, SlotsLieBesideTheirShards) {
  Recipe r = DenseRecipe(train::Adam());
  const auto programs =
      train::BuildPrograms(r.recipe, {DType::kF32, {8, 6}}, {DType::kF32, {8, 4}});
  ASSERT_TRUE(programs.ok()) << programs.status().ToString();
  const auto split = SplitStep(programs->train_step);
  ASSERT_TRUE(split.ok()) << split.status().ToString();
  ASSERT_EQ(split->pushed.size(), 2u);

  std::vector<mesh::NamedType> types;
  for (const Parameter& p : programs->parameters) types.push_back({p.name(), p.type()});
  const auto shards = PlaceShards(types, FixedShards{2}, 2);
  ASSERT_TRUE(shards.ok());
  const auto variables = BuildVariables(programs->parameters, *shards, 2, 0);
  ASSERT_TRUE(variables.ok()) << variables.status().ToString();
  std::vector<std::set<std::string>> known(2);
  for (int s = 0; s < 2; ++s) {
    for (const ServerState& state : (*variables)[s].states) known[s].insert(state.name);
  }
  EXPECT_EQ(known[0], (std::set<std::string>{"dense.bias/part_0", "dense.kernel/part_0"}));

  const auto update = BuildUpdate("train", split->pushed, programs->parameters, *shards, 2,
                                  UpdaterOf(r.optimizer), 0, known);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  ASSERT_EQ(update->size(), 2u);
  const auto describe = [](const ServerUpdate& u) {
    std::vector<std::string> out;
    for (const ServerState& s : u.made.states) {
      out.push_back(s.name + " " + s.type.ToString() + " of " + s.global_name + " " +
                    s.global_type.ToString() +
                    (s.offsets.empty() ? "" : " from " + std::to_string(s.offsets[0])) +
                    (s.saved ? "" : " not saved"));
    }
    return out;
  };
  EXPECT_EQ(
      describe((*update)[0]),
      (std::vector<std::string>{
          "optimizer.iterations i64[] of optimizer.iterations i64[]",
          "optimizer.m.dense.kernel/part_0 f32[3,4] of optimizer.m.dense.kernel f32[6,4] from 0",
          "optimizer.v.dense.kernel/part_0 f32[3,4] of optimizer.v.dense.kernel f32[6,4] from 0",
          "optimizer.m.dense.bias/part_0 f32[2] of optimizer.m.dense.bias f32[4] from 0",
          "optimizer.v.dense.bias/part_0 f32[2] of optimizer.v.dense.bias f32[4] from 0"}));
  EXPECT_EQ(describe((*update)[1])[0],
            "optimizer.iterations i64[] of optimizer.iterations i64[] not saved");
  EXPECT_EQ(describe((*update)[1])[1],
            "optimizer.m.dense.kernel/part_1 f32[3,4] of optimizer.m.dense.kernel f32[6,4] from 3");
  ASSERT_TRUE((*update)[1].program.has_value());
  EXPECT_EQ(Names((*update)[1].program->inputs),
            (std::vector<std::string>{"dense.kernel/part_1", "dense.bias/part_1"}));

  // The same update of a short last batch makes nothing new.
  for (int s = 0; s < 2; ++s) {
    for (const ServerState& state : (*update)[s].made.states) known[s].insert(state.name);
  }
  const auto again = BuildUpdate("train", split->pushed, programs->parameters, *shards, 2,
                                 UpdaterOf(r.optimizer), 0, known);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)[0].made.states.empty());
  EXPECT_EQ(HashProgram(*(*again)[0].program), HashProgram(*(*update)[0].program));
}

TEST(BuildUpdateTest, AServerWithoutShardsHasNothingToDo) {
  const Parameter w("w", TensorType{DType::kF32, {4}}, nn::Initializer::Zeros());
  const std::vector<Parameter> variables = {w};
  const auto shards = PlaceShards(std::vector<mesh::NamedType>{{"w", w.type()}}, Whole{}, 3);
  const std::vector<Pushed> pushed = {{"w", false, 0}};
  const auto update = BuildUpdate("count", pushed, variables, *shards, 3, {}, 0,
                                  std::vector<std::set<std::string>>(3));
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  EXPECT_TRUE((*update)[0].program.has_value());
  EXPECT_FALSE((*update)[1].program.has_value());
  EXPECT_FALSE((*update)[2].program.has_value());
}

TEST(BuildUpdateTest, RefusesAnUnknownVariableAndGradientsWithoutAnUpdater) {
  const Parameter w("w", TensorType{DType::kF32, {4}}, nn::Initializer::Zeros());
  const std::vector<Parameter> variables = {w};
  const auto shards = PlaceShards(std::vector<mesh::NamedType>{{"w", w.type()}}, Whole{}, 1);
  const std::vector<std::set<std::string>> known(1);
  EXPECT_EQ(
      BuildUpdate("u", std::vector<Pushed>{{"v", true, 0}}, variables, *shards, 1, {}, 0, known)
          .status()
          .code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(
      BuildUpdate("u", std::vector<Pushed>{{"w", true, 0}}, variables, *shards, 1, {}, 0, known)
          .status()
          .code(),
      StatusCode::kInvalidArgument);
}

TEST(GradientTapTest, ClipsAsTheOptimizerDoes) {
  Recipe r = DenseRecipe(
      train::Sgd({.common = {.learning_rate = 0.1, .clipvalue = 0.5, .weight_decay = 0.1}}));
  const auto programs =
      train::BuildPrograms(r.recipe, {DType::kF32, {8, 6}}, {DType::kF32, {8, 4}});
  ASSERT_TRUE(programs.ok()) << programs.status().ToString();
  EXPECT_NE(programs->train_step.ToString().find("0.5"), std::string::npos)
      << programs->train_step.ToString();
  EXPECT_TRUE(programs->slots.empty());
  for (const program::State& s : programs->train_step.states) EXPECT_EQ(s.entry, s.exit) << s.name;
}

TEST(SplitTest, AStepCountsTheExamplesOfItsBatch) {
  const auto step = program::ParseProgram(
      "program step\ninput x: f32[5,1] = %0\n%1 = reduce_sum(%0) {axes=[0,1]} : f32[]\n"
      "output loss = %1\n");
  ASSERT_TRUE(step.ok()) << step.status().message();
  const Program counting = CountingExamples(*step, 5);
  EXPECT_EQ(program::Validate(counting), OkStatus());
  ASSERT_EQ(counting.outputs.size(), 2u);
  EXPECT_EQ(counting.outputs[1].name, kExamplesName);
  const auto split = SplitStep(counting);
  ASSERT_TRUE(split.ok()) << split.status().message();
  EXPECT_EQ(split->outputs, 2);
  EXPECT_EQ(split->program.type(split->program.outputs[1].value).ToString(), "i64[]");
}

}  // namespace
}  // namespace meshtrain::parameter
