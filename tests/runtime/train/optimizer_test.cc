// Each optimizer's program, run by the interpreter in f64, against its formula written out again as
// a loop over numbers: Keras 3's (keras/src/optimizers), and the tutorial's for adam_paper.
#include "runtime/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/program/builder.h"
#include "runtime/train/programs.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using program::Builder;
using program::Program;

constexpr int kElements = 3;
constexpr int kSteps = 5;
const TensorType kWeight{DType::kF64, {kElements}};

// The gradient of element i at step t, the same for program and formula.
double GradientAt(int t, int i) { return std::sin(1.7 * t + 2.3 * i) * (i == 2 ? 0.01 : 1); }
double InitialAt(int i) { return 0.5 - 0.4 * i; }

// One weight's reference: the new w, given step t (from 1), w and g. Keeps slots in what it
// captures, one per element.
using Formula = std::function<double(int t, int i, double w, double g)>;
struct Slots {
  double a[kElements] = {};
  double b[kElements] = {};
  double c[kElements] = {};
};

struct Case {
  std::string name;
  std::function<std::unique_ptr<Optimizer>()> make;
  std::function<Formula()> formula;
  std::vector<std::string> slots;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Formula AdamFormula(double lr, bool amsgrad, double decay) {
  auto s = std::make_shared<Slots>();
  return [=](int t, int i, double w, double g) {
    w -= w * decay * lr;
    const double alpha = lr * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    s->a[i] += (g - s->a[i]) * (1 - 0.9);
    s->b[i] += (g * g - s->b[i]) * (1 - 0.999);
    s->c[i] = std::max(s->c[i], s->b[i]);
    return w - s->a[i] * alpha / (std::sqrt(amsgrad ? s->c[i] : s->b[i]) + 1e-7);
  };
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"adam",
       [] { return Adam({.common = {.learning_rate = 0.01}}); },
       [] { return AdamFormula(0.01, false, 0); },
       {"optimizer.iterations", "optimizer.m.w", "optimizer.v.w"}},
      {"adam_amsgrad",
       [] { return Adam({.common = {.learning_rate = 0.01}, .amsgrad = true}); },
       [] { return AdamFormula(0.01, true, 0); },
       {"optimizer.iterations", "optimizer.m.w", "optimizer.v.w", "optimizer.v_max.w"}},
      {"adamw",
       [] { return AdamW({.common = {.learning_rate = 0.01, .weight_decay = 0.04}}); },
       [] { return AdamFormula(0.01, false, 0.04); },
       {"optimizer.iterations", "optimizer.m.w", "optimizer.v.w"}},
      {"adam_paper",
       [] { return AdamPaper(); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int t, int i, double w, double g) {
           s->a[i] = 0.9 * s->a[i] + (1 - 0.9) * g;
           s->b[i] = 0.999 * s->b[i] + (1 - 0.999) * g * g;
           const double m_hat = s->a[i] / (1 - std::pow(0.9, t));
           const double v_hat = s->b[i] / (1 - std::pow(0.999, t));
           return w - 1e-3 * (m_hat / (std::sqrt(v_hat) + 1e-7));
         });
       },
       {"optimizer.t", "optimizer.m.w", "optimizer.v.w"}},
      {"sgd",
       [] { return Sgd({.common = {.learning_rate = 0.05}}); },
       [] { return Formula([](int, int, double w, double g) { return w - 0.05 * g; }); },
       {}},
      {"sgd_decay",
       [] {
         return Sgd({.common = {.learning_rate = 0.05,
                                .weight_decay = 0.1,
                                .exclude_from_weight_decay = {"bias", "gamma"}}});
       },
       [] {
         return Formula([](int, int, double w, double g) { return w - w * 0.1 * 0.05 - 0.05 * g; });
       },
       {}},
      {"sgd_excluded_from_decay",
       [] {
         return Sgd({.common = {.learning_rate = 0.05,
                                .weight_decay = 0.1,
                                .exclude_from_weight_decay = {"bias", "w"}}});
       },
       [] { return Formula([](int, int, double w, double g) { return w - 0.05 * g; }); },
       {}},
      {"sgd_momentum",
       [] { return Sgd({.common = {.learning_rate = 0.05}, .momentum = 0.9}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int, int i, double w, double g) {
           s->a[i] = 0.9 * s->a[i] - 0.05 * g;
           return w + s->a[i];
         });
       },
       {"optimizer.momentum.w"}},
      {"sgd_nesterov",
       [] { return Sgd({.common = {.learning_rate = 0.05}, .momentum = 0.9, .nesterov = true}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int, int i, double w, double g) {
           s->a[i] = 0.9 * s->a[i] - 0.05 * g;
           return w + 0.9 * s->a[i] - 0.05 * g;
         });
       },
       {"optimizer.momentum.w"}},
      {"rmsprop_centered_momentum",
       [] {
         return Rmsprop({.common = {.learning_rate = 0.01}, .momentum = 0.9, .centered = true});
       },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int, int i, double w, double g) {
           s->a[i] = 0.9 * s->a[i] + 0.1 * g * g;
           s->b[i] = 0.9 * s->b[i] + 0.1 * g;
           s->c[i] = 0.9 * s->c[i] + 0.01 * g / std::sqrt(s->a[i] - s->b[i] * s->b[i] + 1e-7);
           return w - s->c[i];
         });
       },
       {"optimizer.velocity.w", "optimizer.average_gradient.w", "optimizer.momentum.w"}},
      {"rmsprop",
       [] { return Rmsprop({.common = {.learning_rate = 0.01}}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int, int i, double w, double g) {
           s->a[i] = 0.9 * s->a[i] + 0.1 * g * g;
           return w - 0.01 * g / std::sqrt(s->a[i] + 1e-7);
         });
       },
       {"optimizer.velocity.w"}},
      {"adagrad",
       [] { return Adagrad({.common = {.learning_rate = 0.05}}); },
       [] {
         auto s = std::make_shared<Slots>();
         for (double& a : s->a) a = 0.1;
         return Formula([=](int, int i, double w, double g) {
           s->a[i] += g * g;
           return w - 0.05 * g / std::sqrt(s->a[i] + 1e-7);
         });
       },
       {"optimizer.accumulator.w"}},
      {"adamax",
       [] { return Adamax({.common = {.learning_rate = 0.01}}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int t, int i, double w, double g) {
           s->a[i] += (g - s->a[i]) * (1 - 0.9);
           s->b[i] = std::max(0.999 * s->b[i], std::abs(g));
           return w - 0.01 * s->a[i] / ((1 - std::pow(0.9, t)) * (s->b[i] + 1e-7));
         });
       },
       {"optimizer.iterations", "optimizer.m.w", "optimizer.u.w"}},
      {"nadam",
       [] { return Nadam({.common = {.learning_rate = 0.01}}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int t, int i, double w, double g) {
           const auto u = [](int n) { return 0.9 * (1 - 0.5 * std::pow(0.96, n)); };
           double product = 1;
           for (int n = 1; n <= t; ++n) product *= u(n);
           s->a[i] += (g - s->a[i]) * (1 - 0.9);
           s->b[i] += (g * g - s->b[i]) * (1 - 0.999);
           const double m_hat =
               u(t + 1) * s->a[i] / (1 - product * u(t + 1)) + (1 - u(t)) * g / (1 - product);
           const double v_hat = s->b[i] / (1 - std::pow(0.999, t));
           return w - m_hat * 0.01 / (std::sqrt(v_hat) + 1e-7);
         });
       },
       {"optimizer.iterations", "optimizer.u_product", "optimizer.m.w", "optimizer.v.w"}},
      {"ftrl",
       [] {
         return Ftrl({.common = {.learning_rate = 0.05},
                      .l1_regularization_strength = 0.01,
                      .l2_regularization_strength = 0.02,
                      .l2_shrinkage_regularization_strength = 0.03,
                      .beta = 0.1});
       },
       [] {
         auto s = std::make_shared<Slots>();
         for (double& a : s->a) a = 0.1;
         return Formula([=](int, int i, double w, double g) {
           const double l2 = 0.02 + 0.1 / (2 * 0.05);
           const double n = s->a[i] + g * g;
           s->b[i] += (g + 2 * 0.03 * w) - (std::sqrt(n) - std::sqrt(s->a[i])) / 0.05 * w;
           s->a[i] = n;
           const double clipped = std::clamp(s->b[i], -0.01, 0.01);
           return (clipped - s->b[i]) / (std::sqrt(n) / 0.05 + 2 * l2);
         });
       },
       {"optimizer.accumulator.w", "optimizer.linear.w"}},
      {"lion",
       [] { return Lion({.common = {.learning_rate = 0.001}}); },
       [] {
         auto s = std::make_shared<Slots>();
         return Formula([=](int, int i, double w, double g) {
           const double c = 0.9 * s->a[i] + (1 - 0.9) * g;
           s->a[i] = 0.99 * s->a[i] + (1 - 0.99) * g;
           return w - 0.001 * ((c > 0) - (c < 0));
         });
       },
       {"optimizer.m.w"}},
  };
  return cases;
}

// The step `w, g -> w'`, with w fed as a state and g as an input.
Result<Program> Trace(Optimizer& optimizer, const Parameter& w) {
  Builder b("step");
  Builder::Scope scope(b);
  const Value g = b.Input("g", w.type());
  optimizer.Apply(std::span(&w, 1), std::span(&g, 1));
  return b.Build();
}

class OptimizerTest : public ::testing::TestWithParam<Case> {};

TEST_P(OptimizerTest, FiveStepsFollowTheFormula) {
  const auto optimizer = GetParam().make();
  const Parameter w("w", kWeight, nn::Initializer::Zeros());
  const auto step = Trace(*optimizer, w);
  ASSERT_TRUE(step.ok()) << step.status().ToString();

  std::vector<std::string> names;
  for (const Parameter& slot : optimizer->slots()) names.push_back(slot.name());
  EXPECT_EQ(names, GetParam().slots);

  const auto init = BuildInit(optimizer->slots(), 0);
  ASSERT_TRUE(init.ok()) << init.status().ToString();
  meshtrain::testing::StepInput empty;
  for (const Parameter& slot : optimizer->slots()) {
    empty.states[slot.name()] = {slot.type(), std::vector<double>(slot.type().num_elements(), -77)};
  }
  const auto begin = Interpret(*init, empty);
  ASSERT_TRUE(begin.ok()) << begin.status().ToString();
  meshtrain::testing::StepInput in{.states = begin->states};
  in.states["w"] = {kWeight, {}};
  for (int i = 0; i < kElements; ++i) in.states["w"].at.push_back(InitialAt(i));

  const Formula formula = GetParam().formula();
  std::vector<double> want(in.states["w"].at.begin(), in.states["w"].at.end());
  for (int t = 1; t <= kSteps; ++t) {
    in.inputs["g"] = {kWeight, {}};
    for (int i = 0; i < kElements; ++i) {
      in.inputs["g"].at.push_back(GradientAt(t, i));
      want[i] = formula(t, i, want[i], GradientAt(t, i));
    }
    const auto out = Interpret(*step, in);
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    in.states = out->states;
    for (int i = 0; i < kElements; ++i) {
      EXPECT_NEAR(in.states["w"].at[i], want[i], 1e-12) << "step " << t << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(OptimizerOptionsTest, GradientsAreClippedBeforeTheUpdate) {
  struct ClipCase {
    OptimizerOptions common;
    std::vector<double> want;  // the change of w under sgd with rate 1, for the gradient {3, 4, 0}
  };
  for (const ClipCase& c : {ClipCase{{.learning_rate = 1, .clipnorm = 1.0}, {0.6, 0.8, 0}},
                            ClipCase{{.learning_rate = 1, .clipnorm = 10.0}, {3, 4, 0}},
                            ClipCase{{.learning_rate = 1, .global_clipnorm = 1.0}, {0.6, 0.8, 0}},
                            ClipCase{{.learning_rate = 1, .clipvalue = 3.5}, {3, 3.5, 0}}}) {
    const auto optimizer = Sgd({.common = c.common});
    const Parameter w("w", kWeight, nn::Initializer::Zeros());
    const auto step = Trace(*optimizer, w);
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    const auto out = Interpret(
        *step, {.inputs = {{"g", {kWeight, {3, 4, 0}}}}, .states = {{"w", {kWeight, {0, 0, 0}}}}});
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    for (int i = 0; i < kElements; ++i) EXPECT_NEAR(out->states.at("w").at[i], -c.want[i], 1e-12);
  }
}

TEST(OptimizerOptionsTest, NoClipTurnsAGradientAroundOrMakesItNothing) {
  const Parameter w("w", kWeight, nn::Initializer::Zeros());
  for (const double limit : {-1.0, 0.0, std::nan("")}) {
    for (const OptimizerOptions& common :
         {OptimizerOptions{.clipnorm = limit}, OptimizerOptions{.global_clipnorm = limit},
          OptimizerOptions{.clipvalue = limit}}) {
      const auto step = Trace(*Sgd({.common = common}), w);
      ASSERT_FALSE(step.ok());
      EXPECT_EQ(step.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(step.status().message().find("expected a number above 0, got: "), std::string::npos)
          << step.status().message();
    }
  }
}

// As a manifest's is refused.
TEST(OptimizerOptionsTest, OneKindOfClipIsTaken) {
  const Parameter w("w", kWeight, nn::Initializer::Zeros());
  const auto step = Trace(*Sgd({.common = {.clipnorm = 100.0, .clipvalue = 1e-3}}), w);
  EXPECT_EQ(step.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(step.status().message().find("expected one of clipnorm, global_clipnorm, clipvalue, "
                                         "got: clipnorm and clipvalue"),
            std::string::npos)
      << step.status().message();
}

TEST(OptimizerSlotsTest, AnotherWeightOfThatPathIsRefusedWhileTheFirstOneLives) {
  const auto optimizer = Sgd({.momentum = 0.9});
  {
    const Parameter first("w", kWeight, nn::Initializer::Zeros());
    ASSERT_TRUE(Trace(*optimizer, first).ok());
    const Parameter second("w", kWeight, nn::Initializer::Zeros());
    const auto step = Trace(*optimizer, second);
    EXPECT_EQ(step.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(step.status().message().find(
                  "slot `optimizer.momentum.w`: expected the weight that it was made for"),
              std::string::npos)
        << step.status().message();
    EXPECT_TRUE(Trace(*optimizer, first).ok());
  }
  const Parameter later("w", kWeight, nn::Initializer::Zeros());
  EXPECT_TRUE(Trace(*optimizer, later).ok());
  EXPECT_EQ(optimizer->slots().size(), 1u);
}

TEST(OptimizerOptionsTest, AGlobalNormCountsAllWeights) {
  const auto optimizer = Sgd({.common = {.learning_rate = 1, .global_clipnorm = 1.0}});
  const TensorType scalar{DType::kF64, {1}};
  const Parameter weights[] = {Parameter("a", scalar, nn::Initializer::Zeros()),
                               Parameter("b", scalar, nn::Initializer::Zeros())};
  Builder b("step");
  Builder::Scope scope(b);
  const Value gradients[] = {b.Input("ga", scalar), b.Input("gb", scalar)};
  optimizer->Apply(weights, gradients);
  const auto out = Interpret(*b.Build(), {.inputs = {{"ga", {scalar, {3}}}, {"gb", {scalar, {4}}}},
                                          .states = {{"a", {scalar, {0}}}, {"b", {scalar, {0}}}}});
  ASSERT_TRUE(out.ok()) << out.status().ToString();
  EXPECT_NEAR(out->states.at("a").at[0], -0.6, 1e-12);
  EXPECT_NEAR(out->states.at("b").at[0], -0.8, 1e-12);
}

TEST(OptimizerStateTest, SlotsHaveTheirWeightsTypeAndLayoutAndOutliveATrace) {
  const auto optimizer = Adam();
  const Parameter w("hidden_1.kernel", TensorType{DType::kF32, {4, 6}}, nn::Initializer::Zeros(),
                    {.layout = nn::LayoutSpecs{"unsharded", "model"}});
  ASSERT_TRUE(Trace(*optimizer, w).ok());
  const auto first = optimizer->slots();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1].name(), "optimizer.m.hidden_1.kernel");
  EXPECT_EQ(first[1].type(), w.type());
  EXPECT_EQ(first[1].layout(), w.layout());
  EXPECT_FALSE(first[1].trainable());
  ASSERT_TRUE(Trace(*optimizer, w).ok());
  ASSERT_EQ(optimizer->slots().size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(optimizer->slots()[i], first[i]);
}

}  // namespace
}  // namespace meshtrain::train
