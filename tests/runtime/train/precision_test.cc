// Layers that compute in 16 bits (Recipe::compute) beside weights of f32, and a scaled loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>
#include <string>

#include "runtime/nn/model.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/prediction.h"
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
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr int64_t kExamples = 12, kFeatures = 6, kClasses = 3;
const TensorType kX{DType::kF32, {kExamples, kFeatures}}, kY{DType::kI32, {kExamples}};

Recipe SmallRecipe(std::optional<DType> compute, double loss_scale = 1) {
  Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Dense(8, {.name = "hidden", .activation = nn::ActivationKind::kTanh}),
      nn::LayerNormalization({-1}, {.name = "norm"}), nn::Dense(kClasses, {.name = "logits"}));
  recipe.heads[0].loss = losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = Sgd({.common = {.learning_rate = 1.0}});
  recipe.heads[0].metrics = {metrics::Accuracy()};
  recipe.seed = 3;
  recipe.compute = compute;
  recipe.loss_scale = loss_scale;
  return recipe;
}

// The kinds of ops whose results are of `dtype`.
std::set<std::string> KindsOf(const Program& program, DType dtype) {
  std::set<std::string> kinds;
  for (const program::Op& op : program.ops) {
    if (program.type(op.results[0]).dtype == dtype) kinds.insert(op.kind);
  }
  return kinds;
}

StepInput FirstStep(const Programs& programs, int64_t examples) {
  StepInput in, zeros;
  for (const program::State& s : programs.init.states) {
    zeros.states[s.name] = Array(programs.init.type(s.entry));
  }
  const auto init = Interpret(programs.init, zeros);
  EXPECT_TRUE(init.ok()) << init.status().ToString();
  in.states = init->states;
  Array x({DType::kF32, {examples, kFeatures}}), y({DType::kI32, {examples}});
  for (size_t i = 0; i < x.at.size(); ++i) {
    x.at[i] = static_cast<float>(std::sin(static_cast<double>(i * i)));
  }
  for (size_t i = 0; i < y.at.size(); ++i) y.at[i] = static_cast<double>(i * 5 % kClasses);
  in.inputs["x"] = std::move(x);
  in.inputs["y"] = std::move(y);
  return in;
}

// How far a weight moves in the first step: with a rate of 1, its gradient.
struct Moved {
  double loss = 0;
  Array kernel;
};
Moved Step(const Recipe& recipe, int64_t examples = kExamples) {
  const auto programs = BuildPrograms(recipe, TensorType{DType::kF32, {examples, kFeatures}},
                                      TensorType{DType::kI32, {examples}});
  EXPECT_TRUE(programs.ok()) << programs.status().ToString();
  if (!programs.ok()) return {};
  const StepInput in = FirstStep(*programs, examples);
  const auto result = Interpret(programs->train_step, in);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  Moved moved{static_cast<double>(result->outputs.at("loss").at[0]),
              result->states.at("hidden.kernel")};
  const Array& before = in.states.at("hidden.kernel");
  for (size_t i = 0; i < before.at.size(); ++i)
    moved.kernel.at[i] = before.at[i] - moved.kernel.at[i];
  return moved;
}

// |a - b| / |b|, of all elements together.
double Apart(const Array& a, const Array& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.at.size(); ++i) {
    difference += static_cast<double>((a.at[i] - b.at[i]) * (a.at[i] - b.at[i]));
    size += static_cast<double>(b.at[i] * b.at[i]);
  }
  return std::sqrt(difference / size);
}

TEST(PrecisionTest, LayersComputeIn16BitsBesideWeightsOfF32) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto programs = BuildPrograms(SmallRecipe(dtype), kX, kY);
    ASSERT_TRUE(programs.ok()) << programs.status().ToString();
    for (const Parameter& p : programs->States()) EXPECT_FALSE(mesh::IsHalf(p.type().dtype));
    const auto half = KindsOf(programs->train_step, dtype);
    EXPECT_THAT(half, IsSupersetOf({"matmul", "tanh", "add", "cast"}));
    // Normalisation, the loss and the optimizer are f32's.
    for (const char* kind : {"rsqrt", "sparse_softmax_cross_entropy"}) {
      EXPECT_FALSE(half.contains(kind)) << kind;
      EXPECT_TRUE(KindsOf(programs->train_step, DType::kF32).contains(kind)) << kind;
    }
    // Weights are added to in f32: nothing of 16 bits reaches a state.
    for (const program::State& s : programs->train_step.states) {
      EXPECT_EQ(programs->train_step.type(s.exit).dtype, programs->train_step.type(s.entry).dtype);
    }
  }
  const auto plain = BuildPrograms(SmallRecipe(std::nullopt), kX, kY);
  ASSERT_TRUE(plain.ok());
  for (const auto& value : plain->train_step.values) EXPECT_FALSE(mesh::IsHalf(value.type.dtype));
}

TEST(PrecisionTest, StepsAreThoseOfF32ToTheTypesPrecision) {
  const Moved want = Step(SmallRecipe(std::nullopt));
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Moved got = Step(SmallRecipe(dtype));
    const double unit = mesh::UnitRoundoff(dtype);
    EXPECT_NEAR(got.loss, want.loss, 8 * unit);
    const double apart = Apart(got.kernel, want.kernel);
    EXPECT_LT(apart, 16 * unit);
    EXPECT_GT(apart, unit / 64) << "something was computed in 16 bits";
  }
}

TEST(PrecisionTest, AScaledLossKeepsGradientsThatF16WouldLose) {
  // What comes back to `hidden` is some (1 / 4096) * 1e-4 for an example, less than f16 has.
  const auto recipe = [](std::optional<DType> compute, double loss_scale) {
    Recipe made = SmallRecipe(compute, loss_scale);
    made.model = std::make_shared<nn::Sequential>(
        nn::Dense(4, {.name = "hidden", .activation = nn::ActivationKind::kTanh}),
        nn::Dense(kClasses,
                  {.name = "logits", .kernel_initializer = nn::Initializer::Normal(0, 1e-4)}));
    return made;
  };
  constexpr int64_t kMany = 4096;
  const Moved want = Step(recipe(std::nullopt, 1), kMany);
  EXPECT_GT(Apart(Step(recipe(DType::kF16, 1), kMany).kernel, want.kernel), 0.4);
  EXPECT_LT(Apart(Step(recipe(DType::kF16, 1024), kMany).kernel, want.kernel), 0.05);
  // Powers of two change nothing else.
  const Moved plain = Step(SmallRecipe(std::nullopt)),
              scaled = Step(SmallRecipe(std::nullopt, 1024));
  EXPECT_EQ(scaled.loss, plain.loss);
  EXPECT_EQ(Apart(scaled.kernel, plain.kernel), 0);
}

// Each weight's gradient comes back through the cast that it was read by, once.
TEST(PrecisionTest, GradientsComeBackByCastsThatSayInWhatTheyAreSummed) {
  for (const bool narrow : {false, true}) {
    Recipe recipe = SmallRecipe(DType::kBF16);
    recipe.narrow_sums = narrow;
    const auto programs = BuildPrograms(recipe, kX, kY);
    ASSERT_TRUE(programs.ok()) << programs.status().ToString();
    const Program& step = programs->train_step;
    int back = 0;
    for (const program::Op& op : step.ops) {
      if (op.kind != "cast" || !op.attrs.Has("narrow_sums")) continue;
      back += mesh::IsHalf(step.type(op.operands[0]).dtype) ? 1 : 0;
    }
    EXPECT_EQ(back, narrow ? 4 : 0) << "kernels and biases of two layers";
  }
}

// The gradient of four devices' examples is that of all of them, whatever it is summed in.
TEST(PrecisionTest, DevicesSumGradientsInF32OrAsTheyCompute) {
  const Mesh mesh = *Mesh::Parse("batch=4");
  sharding::Given given;
  given.inputs.insert_or_assign("x", *Layout::Parse("{batch, *}", mesh));
  given.inputs.insert_or_assign("y", *Layout::Parse("{batch}", mesh));
  for (const bool narrow : {false, true}) {
    Recipe recipe = SmallRecipe(DType::kBF16);
    recipe.narrow_sums = narrow;
    const auto programs = BuildPrograms(recipe, kX, kY);
    ASSERT_TRUE(programs.ok()) << programs.status().ToString();
    const auto p = sharding::Shard(programs->train_step, mesh, given);
    ASSERT_TRUE(p.ok()) << p.status().ToString();
    int halves = 0;
    for (const program::Op& op : p->local.ops) {
      if (op.kind != "all_reduce" && op.kind != "reduce_scatter") continue;
      halves += mesh::IsHalf(p->local.type(op.results[0]).dtype) ? 1 : 0;
    }
    EXPECT_EQ(halves, narrow ? 4 : 0) << p->local.ToString();

    const StepInput in = FirstStep(*programs, kExamples);
    const auto whole = Interpret(programs->train_step, in);
    const auto parts = Interpret(*p, in, 1);
    ASSERT_TRUE(whole.ok() && parts.ok()) << parts.status().ToString();
    const std::string kernel = "hidden.kernel";
    Array want = in.states.at(kernel), got = want;
    for (size_t i = 0; i < want.at.size(); ++i) {
      got.at[i] -= parts->states.at(kernel).at[i];
      want.at[i] -= whole->states.at(kernel).at[i];
    }
    EXPECT_LT(Apart(got, want), 8 * mesh::UnitRoundoff(DType::kBF16)) << narrow;
  }
}

TEST(PrecisionTest, WhatItPredictsIsF32) {
  const Recipe recipe = SmallRecipe(DType::kBF16);
  ASSERT_TRUE(BuildPrograms(recipe, kX, kY).ok());
  const NamedInput input{"x", kX};
  const auto made = BuildPrediction(*recipe.model, {&input, 1}, 3, recipe.compute);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Program& program = made->program;
  EXPECT_EQ(program.type(program.outputs[0].value).ToString(), "f32[12,3]");
  EXPECT_TRUE(KindsOf(program, DType::kBF16).contains("matmul"));
}

// Position 300 times a frequency has no digit of bf16 left behind the point.
// A probability of 16 bits near 1 is 1, whose logarithm, and gradient, are another's.
TEST(PrecisionTest, ProbabilitiesThatItPredictsAreNotRounded) {
  for (const nn::ActivationKind kind :
       {nn::ActivationKind::kSigmoid, nn::ActivationKind::kSoftmax}) {
    const bool sigmoid = kind == nn::ActivationKind::kSigmoid;
    nn::Sequential model(
        nn::Dense(sigmoid ? 1 : 2, {.name = "p", .activation = kind, .use_bias = false}));
    const NamedInput input{"x", TensorType{DType::kF32, {1, 1}}};
    const auto prediction = BuildPrediction(model, {&input, 1}, 0, DType::kBF16);
    ASSERT_TRUE(prediction.ok()) << prediction.status().ToString();
    const program::State& kernel = prediction->program.states.at(0);
    Array weights(prediction->program.type(kernel.entry));
    weights.at[0] = 7;
    const auto out = Interpret(prediction->program, {.inputs = {{"x", {input.type, {1}}}},
                                                     .states = {{kernel.name, weights}}});
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    EXPECT_NEAR(out->outputs.at("predictions").at[0], 1 / (1 + std::exp(-7.0)), 1e-7);
  }
}

TEST(PrecisionTest, AnglesOfRotaryPositionsAreF32) {
  nn::AttentionOptions options{.name = "it", .causal = true, .rope_max_wavelength = 10000};
  nn::MultiHeadAttention attention(2, options);
  const NamedInput input{"x", {DType::kF32, {1, 300, 8}}};
  const auto made = BuildPrediction(attention, {&input, 1}, 3, DType::kBF16);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::set<std::string> halves = KindsOf(made->program, DType::kBF16);
  EXPECT_TRUE(halves.contains("matmul"));
  for (const char* kind : {"iota", "exp", "cos", "sin"}) {
    EXPECT_FALSE(halves.contains(kind)) << kind;
    EXPECT_TRUE(KindsOf(made->program, DType::kF32).contains(kind)) << kind;
  }
}

TEST(PrecisionTest, BadInput) {
  const TensorType wide{DType::kF64, kX.dims};
  const auto f64 = BuildPrograms(SmallRecipe(DType::kBF16), wide, kY);
  ASSERT_FALSE(f64.ok());
  EXPECT_THAT(f64.status().ToString(),
              HasSubstr("computes in bf16: expected inputs of f32, got: f64[12,6]"));
  for (const double scale : {0.0, -1.0, std::nan("")}) {
    const auto made = BuildPrograms(SmallRecipe(std::nullopt, scale), kX, kY);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.status().message(), HasSubstr("loss_scale: expected a number above 0"));
  }
}

}  // namespace
}  // namespace meshtrain::train
