// Each schedule, recorded and run by the interpreter, against Keras 3's formula written out as
// numbers; and optimizers whose rate is one.
#include "runtime/train/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "runtime/program/builder.h"
#include "runtime/train/programs.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Interpret;
using program::Builder;
using program::Program;

const TensorType kScalar{DType::kF64, {}};

struct Case {
  std::string name;
  LearningRate rate;
  std::function<double(double s)> formula;
  std::string text;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"ExponentialDecay",
       schedules::ExponentialDecay({.initial = 0.5, .decay_steps = 4, .decay_rate = 0.8}),
       [](double s) { return 0.5 * std::pow(0.8, s / 4); }, "exponential_decay from 0.5"},
      {"ExponentialStaircase",
       schedules::ExponentialDecay(
           {.initial = 0.5, .decay_steps = 4, .decay_rate = 0.8, .staircase = true}),
       [](double s) { return 0.5 * std::pow(0.8, std::floor(s / 4)); },
       "exponential_decay from 0.5"},
      {"InverseTimeDecay",
       schedules::InverseTimeDecay({.initial = 0.5, .decay_steps = 4, .decay_rate = 0.8}),
       [](double s) { return 0.5 / (1 + 0.8 * s / 4); }, "inverse_time_decay from 0.5"},
      {"PolynomialDecay",
       schedules::PolynomialDecay({.initial = 0.5, .decay_steps = 6, .end = 0.1, .power = 2}),
       [](double s) { return (0.5 - 0.1) * std::pow(1 - std::min(s, 6.0) / 6, 2) + 0.1; },
       "polynomial_decay from 0.5"},
      {"PolynomialCycle",
       schedules::PolynomialDecay({.initial = 0.5, .decay_steps = 4, .end = 0.1, .cycle = true}),
       [](double s) {
         const double length = 4 * (s == 0 ? 1 : std::ceil(s / 4));
         return (0.5 - 0.1) * (1 - s / length) + 0.1;
       },
       "polynomial_decay from 0.5"},
      {"CosineDecay", schedules::CosineDecay({.initial = 0.5, .decay_steps = 6, .alpha = 0.1}),
       [](double s) {
         const double wave = 0.5 * (1 + std::cos(M_PI * std::min(s, 6.0) / 6));
         return 0.5 * ((1 - 0.1) * wave + 0.1);
       },
       "cosine_decay from 0.5"},
      {"WarmUpOfACosine",
       schedules::WarmUp(4, schedules::CosineDecay({.initial = 0.5, .decay_steps = 4})),
       [](double s) {
         const double wave = 0.5 * (1 + std::cos(M_PI * std::min(s - 4, 4.0) / 4));
         return s < 4 ? 0.5 * (s + 1) / 4 : 0.5 * wave;
       },
       "cosine_decay from 0.5 after 4 steps of warm-up"},
      {"PiecewiseConstant", schedules::PiecewiseConstant({3, 7}, {0.5, 0.25, 0.125}),
       [](double s) { return s <= 3   ? 0.5
                             : s <= 7 ? 0.25
                                      : 0.125; },
       "piecewise_constant_decay from 0.5"},
      {"WarmUpOfAConstant", schedules::WarmUp(4, 0.5),
       [](double s) { return s < 4 ? 0.5 * (s + 1) / 4 : 0.5; }, "0.5 after 4 steps of warm-up"},
      {"WarmUpOfADecay",
       schedules::WarmUp(
           4, schedules::ExponentialDecay({.initial = 0.5, .decay_steps = 2, .decay_rate = 0.5})),
       [](double s) { return s < 4 ? 0.5 * (s + 1) / 4 : 0.5 * std::pow(0.5, (s - 4) / 2); },
       "exponential_decay from 0.5 after 4 steps of warm-up"},
  };
  return cases;
}

class ScheduleTest : public ::testing::TestWithParam<Case> {};

TEST_P(ScheduleTest, FollowsTheFormula) {
  const Case& c = GetParam();
  Builder b("rate");
  Builder::Scope scope(b);
  b.Output("rate", c.rate.Record(b.Input("step", kScalar)));
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  for (int step = 0; step < 12; ++step) {
    const auto out =
        Interpret(*program, {.inputs = {{"step", {kScalar, {static_cast<double>(step)}}}}});
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    EXPECT_NEAR(out->outputs.at("rate").at[0], c.formula(step), 1e-14) << "step " << step;
  }
  EXPECT_EQ(c.rate.ToString(), c.text);
}

INSTANTIATE_TEST_SUITE_P(All, ScheduleTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// The change of w at each step, for gradients of 1.
std::vector<double> Changes(Optimizer& optimizer, int steps) {
  const Parameter w("w", kScalar, nn::Initializer::Zeros());
  Builder b("step");
  Builder::Scope scope(b);
  const Value g = b.Input("g", kScalar);
  optimizer.Apply(std::span(&w, 1), std::span(&g, 1));
  const auto step = b.Build();
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  const auto init = BuildInit(optimizer.slots(), 0);
  meshtrain::testing::StepInput empty;
  for (const Parameter& slot : optimizer.slots()) empty.states[slot.name()] = {slot.type(), {0}};
  meshtrain::testing::StepInput in{.inputs = {{"g", {kScalar, {1}}}},
                                   .states = Interpret(*init, empty)->states};
  in.states["w"] = {kScalar, {0}};
  std::vector<double> changes;
  for (int i = 0; i < steps; ++i) {
    const double before = in.states["w"].at[0];
    in.states = Interpret(*step, in)->states;
    changes.push_back(in.states["w"].at[0] - before);
  }
  return changes;
}

LearningRate Halving() {
  return schedules::ExponentialDecay({.initial = 0.5, .decay_steps = 1, .decay_rate = 0.5});
}

TEST(ScheduledOptimizerTest, EachStepIsAsLongAsItsRate) {
  const auto sgd = Sgd({.common = {.learning_rate = Halving()}});
  EXPECT_EQ(Changes(*sgd, 3), (std::vector<double>{-0.5, -0.25, -0.125}));
  ASSERT_EQ(sgd->slots().size(), 1u);
  EXPECT_EQ(sgd->slots()[0].name(), "optimizer.iterations");
}

TEST(ScheduledOptimizerTest, EveryOptimizerIsScaledByItsRate) {
  // Each one's first step at 0.5 and, from the same state, its second at 0.25: with a constant rate
  // of 1 as the measure. Ftrl's update is not a multiple of its rate.
  const std::map<std::string, std::function<std::unique_ptr<Optimizer>(LearningRate)>> all = {
      {"adam", [](LearningRate r) { return Adam({.common = {.learning_rate = r}}); }},
      {"adam_paper", [](LearningRate r) { return AdamPaper({.common = {.learning_rate = r}}); }},
      {"adamax", [](LearningRate r) { return Adamax({.common = {.learning_rate = r}}); }},
      {"nadam", [](LearningRate r) { return Nadam({.common = {.learning_rate = r}}); }},
      {"rmsprop", [](LearningRate r) { return Rmsprop({.common = {.learning_rate = r}}); }},
      {"adagrad", [](LearningRate r) { return Adagrad({.common = {.learning_rate = r}}); }},
      {"lion", [](LearningRate r) { return Lion({.common = {.learning_rate = r}}); }}};
  for (const auto& [name, make] : all) {
    const std::vector<double> unit = Changes(*make(1), 2), halving = Changes(*make(Halving()), 2);
    EXPECT_NEAR(halving[0], 0.5 * unit[0], 1e-12) << name;
    EXPECT_NEAR(halving[1], 0.25 * unit[1], 1e-12) << name;
  }
}

TEST(ScheduledOptimizerTest, FtrlWithAConstantScheduleIsFtrl) {
  const LearningRate constant{
      [](const Value& step) { return step.builder()->Constant(0.3, DType::kF64); }, "0.3"};
  FtrlOptions options{
      .l1_regularization_strength = 0.01, .l2_regularization_strength = 0.02, .beta = 0.1};
  options.common.learning_rate = 0.3;
  const std::vector<double> want = Changes(*Ftrl(options), 3);
  options.common.learning_rate = constant;
  const std::vector<double> got = Changes(*Ftrl(options), 3);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(got[i], want[i], 1e-14);
}

TEST(ScheduledOptimizerTest, WeightDecayGoesByTheRateOfItsStep) {
  const auto plain = Sgd({.common = {.learning_rate = Halving()}});
  const auto decaying = Sgd({.common = {.learning_rate = Halving(), .weight_decay = 0.1}});
  const std::vector<double> without = Changes(*plain, 2), with = Changes(*decaying, 2);
  EXPECT_EQ(with[0], without[0]);  // w is 0
  EXPECT_NEAR(with[1] - without[1], 0.5 * 0.1 * 0.25, 1e-15);
}

}  // namespace
}  // namespace meshtrain::train
