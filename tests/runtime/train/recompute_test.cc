// Values that are computed again on the way back (Recipe::recompute): the same numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "runtime/nn/model.h"
#include "runtime/program/again.h"
#include "runtime/program/parts.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/programs.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using mesh::Layout;
using mesh::Mesh;
using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::StepInput;
using meshtrain::testing::StepResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kExamples = 8, kFeatures = 6, kClasses = 3;
const TensorType kX{DType::kF32, {kExamples, kFeatures}}, kY{DType::kI32, {kExamples}};

// Two blocks with random numbers, averages that a step moves, and a value of the first block that
// the head reads too.
Recipe BlocksRecipe(std::vector<std::string> recompute, int64_t accumulate = 1) {
  const nn::Symbol x = nn::Input();
  const auto call = [](auto layer, const std::vector<nn::Symbol>& inputs) {
    return nn::Apply(std::make_shared<decltype(layer)>(std::move(layer)), inputs);
  };
  const auto block = [&](const nn::Symbol& in, const std::string& name) {
    constexpr auto kTanh = nn::ActivationKind::kTanh;
    nn::Symbol y = call(nn::Dense(5, {.name = name + ".up", .activation = kTanh}), {in});
    y = call(nn::Dropout(0.5, {}, name + ".drop"), {y});
    y = call(nn::BatchNormalization({{.name = name + ".norm"}}), {y});
    return call(nn::Dense(kFeatures, {.name = name + ".down", .activation = kTanh}), {y});
  };
  const nn::Symbol first = block(x, "blocks.0");
  const nn::Symbol second = block(first, "blocks.1");
  const nn::Symbol sum = call(nn::Add("sum"), {first, second});
  Recipe recipe;
  recipe.model = std::make_shared<nn::Functional>(
      std::vector{x}, call(nn::Dense(kClasses, {.name = "logits"}), {sum}));
  recipe.heads[0].loss = losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = Sgd({.common = {.learning_rate = 1.0}});
  recipe.heads[0].metrics = {metrics::Accuracy()};
  recipe.seed = 3;
  recipe.accumulate = accumulate;
  recipe.recompute = std::move(recompute);
  return recipe;
}

StepInput FirstStep(const Programs& programs) {
  StepInput in, zeros;
  for (const program::State& s : programs.init.states) {
    zeros.states[s.name] = Array(programs.init.type(s.entry));
  }
  const auto init = Interpret(programs.init, zeros);
  EXPECT_TRUE(init.ok()) << init.status().ToString();
  in.states = init->states;
  Array x(kX), y(kY);
  for (size_t i = 0; i < x.at.size(); ++i) {
    x.at[i] = static_cast<float>(std::sin(static_cast<double>(i * i)));
  }
  for (size_t i = 0; i < y.at.size(); ++i) y.at[i] = static_cast<double>(i * 5 % kClasses);
  in.inputs["x"] = std::move(x);
  in.inputs["y"] = std::move(y);
  return in;
}

// The layers of the ops that are there again, per part, with how many.
std::map<std::string, int> Again(const Program& program) {
  std::map<std::string, int> paths;
  for (const program::Op& op : program.ops) {
    if (program::IsAgain(op)) ++paths[std::string(program::PathDrawn(op))];
  }
  return paths;
}

std::set<std::string> Layers(const std::map<std::string, int>& paths) {
  std::set<std::string> layers;
  for (const auto& [path, count] : paths) layers.insert(path);
  return layers;
}

// To the last bit: the same numbers go through the same operations.
void ExpectSame(const StepResult& got, const StepResult& want) {
  ASSERT_EQ(got.states.size(), want.states.size());
  for (const auto& [name, state] : want.states) EXPECT_EQ(got.states.at(name).at, state.at) << name;
  for (const auto& [name, out] : want.outputs) EXPECT_EQ(got.outputs.at(name).at, out.at) << name;
}

TEST(RecomputeTest, StepsAreTheSameToTheBit) {
  for (const int64_t accumulate : {1, 2}) {
    const auto kept = BuildPrograms(BlocksRecipe({}, accumulate), kX, kY);
    ASSERT_TRUE(kept.ok()) << kept.status().ToString();
    const auto want = Interpret(kept->train_step, FirstStep(*kept));
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    EXPECT_THAT(Again(kept->train_step), ElementsAre());
    for (const std::vector<std::string>& rules : std::vector<std::vector<std::string>>{
             {"blocks\\.[0-9]"}, {"blocks"}, {"blocks\\.0"}, {"."}, {".*up", ".*norm"}}) {
      const auto made = BuildPrograms(BlocksRecipe(rules, accumulate), kX, kY);
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      EXPECT_GT(made->train_step.ops.size(), kept->train_step.ops.size()) << rules[0];
      EXPECT_EQ(made->eval_step.ops.size(), kept->eval_step.ops.size()) << rules[0];
      const auto got = Interpret(made->train_step, FirstStep(*made));
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      ExpectSame(*got, *want);
    }
  }
}

// Between the forward ops and those that repeat them no value is held but what leads into a scope.
TEST(RecomputeTest, OnlyWhatLeadsIntoAScopeIsKept) {
  const auto made = BuildPrograms(BlocksRecipe({"blocks\\.[0-9]"}), kX, kY);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Program& step = made->train_step;
  EXPECT_THAT(Layers(Again(step)),
              ElementsAre("blocks.0.down", "blocks.0.drop", "blocks.0.norm", "blocks.0.up",
                          "blocks.1.down", "blocks.1.drop", "blocks.1.norm", "blocks.1.up"));
  bool back = false;  // past the first op that repeats one
  int read = 0;
  for (const program::Op& op : step.ops) {
    back = back || program::IsAgain(op);
    if (!back) continue;
    for (const program::ValueId v : op.operands) {
      const int32_t producer = step.values[v].op;
      if (producer < 0 || step.ops[producer].kind != "tanh") continue;
      const program::Op& from = step.ops[producer];
      EXPECT_TRUE(program::IsAgain(from) || from.path == "blocks.0.down")
          << from.path << ", read by " << op.kind << " of " << op.path;
      ++read;
    }
  }
  EXPECT_GT(read, 4);
  // The scope's last ops are repeated only where something reads them.
  EXPECT_EQ(Again(step).at("blocks.0.up"), Again(step).at("blocks.1.up"));
}

TEST(RecomputeTest, TheSameUnderLayouts) {
  const Mesh mesh = *Mesh::Parse("batch=2,model=2");
  sharding::Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch, *}", mesh));
  given.inputs.insert_or_assign("y", *Layout::Parse("{batch}", mesh));
  given.states.insert_or_assign("blocks.0.up.kernel", *Layout::Parse("{*, model}", mesh));
  given.states.insert_or_assign("blocks.0.down.kernel", *Layout::Parse("{model, *}", mesh));
  const auto made = BuildPrograms(BlocksRecipe({"blocks\\.[0-9]"}), kX, kY);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto parts = sharding::Shard(made->train_step, mesh, given);
  ASSERT_TRUE(parts.ok()) << parts.status().ToString();
  const StepInput in = FirstStep(*made);
  const auto want = Interpret(made->train_step, in), got = Interpret(*parts, in, 1);
  ASSERT_TRUE(want.ok() && got.ok()) << got.status().ToString();
  for (const auto& [name, state] : want->states) {
    const Array& other = got->states.at(name);
    for (size_t i = 0; i < state.at.size(); ++i) {
      EXPECT_NEAR(other.at[i], state.at[i], 1e-5) << name;
    }
  }
}

TEST(RecomputeTest, BadRulesAreNamed) {
  const auto message = [](std::vector<std::string> rules) {
    const auto made = BuildPrograms(BlocksRecipe(std::move(rules)), kX, kY);
    return made.ok() ? "" : made.status().message();
  };
  EXPECT_THAT(message({"blocks("}), HasSubstr("recompute: `blocks(` is not a regular expression"));
  EXPECT_THAT(message({"blocks", "blocks"}), HasSubstr("recompute: `blocks` is there already"));
  EXPECT_THAT(message({"block_0"}), HasSubstr("recompute: `block_0` matches no layer"));
  EXPECT_THAT(message({"logit\\."}), HasSubstr("near: logits"));
}

}  // namespace
}  // namespace meshtrain::train
