// A model of several outputs, each with a loss of its own: the step of the weighted sum, held
// against programs of each loss alone and against sums that are written out here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/nn/model.h"
#include "runtime/train/prediction.h"
#include "runtime/train/programs.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::StepInput;
using meshtrain::testing::StepResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kFeatures = 3, kClasses = 4;
constexpr double kRate = 0.25, kPenalty = 0.125;

const std::vector<std::string> kComponents = {"x", "digit", "odd"};
std::vector<TensorType> TypesOf(int64_t examples) {
  return {
      {DType::kF64, {examples, kFeatures}}, {DType::kI32, {examples}}, {DType::kF64, {examples}}};
}

testing::Arrays BatchOf(int64_t examples, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<TensorType> types = TypesOf(examples);
  Array x(types[0]), digit(types[1]), odd(types[2]);
  for (auto& at : x.at) at = std::uniform_real_distribution<double>(-1, 1)(random);
  for (size_t i = 0; i < digit.at.size(); ++i) {
    digit.at[i] = static_cast<double>(random() % kClasses);
    odd.at[i] = static_cast<double>(static_cast<int>(digit.at[i]) % 2);
  }
  return {{"x", std::move(x)}, {"digit", std::move(digit)}, {"odd", std::move(odd)}};
}

Head Digit(LossReduction reduction = LossReduction::kMean) {
  return {
      .output = "digit",
      .labels = "digit",
      .loss = losses::SparseCategoricalCrossentropy({.from_logits = true, .reduction = reduction}),
      .metrics = {metrics::Accuracy(), metrics::Perplexity()}};
}
Head Parity(LossReduction reduction = LossReduction::kMean) {
  return {.output = "parity",
          .labels = "odd",
          .loss = losses::BinaryCrossentropy({.from_logits = true, .reduction = reduction}),
          .metrics = {metrics::Accuracy()}};
}

// A penalised trunk under two layers. Weights have the same paths in every one.
Recipe RecipeOf(std::vector<Head> heads) {
  const nn::Symbol x = nn::Input();
  const nn::Symbol trunk =
      nn::Apply(nn::Make<nn::Dense>(5, nn::DenseOptions{.name = "trunk",
                                                        .activation = nn::ActivationKind::kTanh,
                                                        .kernel_regularizer = nn::L2(kPenalty)}),
                x);
  const nn::Symbol digit =
      nn::Apply(nn::Make<nn::Dense>(kClasses, nn::DenseOptions{.name = "digit"}), trunk);
  const nn::Symbol parity =
      nn::Apply(nn::Make<nn::Dense>(1, nn::DenseOptions{.name = "parity"}), trunk);
  Recipe recipe;
  recipe.components = kComponents;
  recipe.inputs = {"x"};
  recipe.model = std::make_shared<nn::Functional>(
      std::vector<nn::Symbol>{x},
      std::vector<nn::NamedSymbol>{{"digit", digit}, {"parity", parity}});
  if (heads.size() == 1) {
    const nn::Symbol only = heads[0].output == "digit" ? digit : parity;
    recipe.model = std::make_shared<nn::Functional>(std::vector<nn::Symbol>{x}, only);
    heads[0].output = "";
  }
  recipe.heads = std::move(heads);
  recipe.optimizer = Sgd({.common = {.learning_rate = kRate}});
  return recipe;
}

Head Times(Head head, double weight) {
  head.weight = weight;
  return head;
}

testing::Arrays FirstWeights(uint32_t seed) {
  std::mt19937 random(seed);
  const auto programs = BuildPrograms(RecipeOf({Digit(), Parity()}), TypesOf(4));
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  testing::Arrays weights;
  for (const Parameter& p : programs->States()) {
    Array& weight = weights[p.name()] = Array(p.type());
    for (auto& at : weight.at) at = std::normal_distribution<double>(0, 1)(random);
  }
  return weights;
}

// A step on these weights, of those that the program has.
StepResult Step(const Recipe& recipe, const testing::Arrays& weights, int64_t examples,
                uint32_t seed, bool training = true) {
  const auto programs = BuildPrograms(recipe, TypesOf(examples));
  EXPECT_TRUE(programs.ok()) << programs.status().message();
  if (!programs.ok()) return {};
  const Program& step = training ? programs->train_step : programs->eval_step;
  StepInput in{BatchOf(examples, seed), {}};
  for (const program::State& state : step.states) in.states[state.name] = weights.at(state.name);
  auto result = Interpret(step, in);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : StepResult{};
}

double Figure(const StepResult& step, const std::string& name) {
  const auto found = step.outputs.find(name);
  EXPECT_NE(found, step.outputs.end()) << name;
  return found == step.outputs.end() ? NAN : static_cast<double>(found->second.at[0]);
}

// The gradient that plain descent took, 0 where the program has no such weight.
double GradientOf(const StepResult& step, const testing::Arrays& from, const std::string& name,
                  size_t i) {
  const auto to = step.states.find(name);
  if (to == step.states.end()) return 0;
  return static_cast<double>((from.at(name).at[i] - to->second.at[i]) / kRate);
}

TEST(HeadsTest, FiguresAreNamedAsKerasNamesThem) {
  const auto programs = BuildPrograms(RecipeOf({Digit(), Parity()}), TypesOf(4));
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  for (const Program* p : {&programs->train_step, &programs->eval_step}) {
    std::vector<std::string> names;
    for (const program::Port& output : p->outputs) names.push_back(output.name);
    EXPECT_THAT(names, ElementsAre("loss", "digit_loss", "digit_accuracy", "digit_perplexity",
                                   "parity_loss", "parity_accuracy"));
  }
  ASSERT_EQ(programs->summed.size(), 1u);
  EXPECT_EQ(programs->summed[0].name, "digit_perplexity");
  EXPECT_EQ(programs->classes, (std::map<std::string, int64_t>{{"digit", kClasses}, {"odd", 2}}));
}

// Losses of any weights and reductions: the gradient is that of each alone, added up, and the
// penalty's once. `loss` is the same sum of the reported means.
TEST(HeadsTest, TheStepIsTheWeightedSumOfEachAlone) {
  std::mt19937 random(7);
  const auto among = [&](std::vector<double> values) { return values[random() % values.size()]; };
  for (uint32_t round = 0; round < 12; ++round) {
    const LossReduction reductions[] = {LossReduction::kMean, LossReduction::kSum};
    const LossReduction a = reductions[round % 2], b = reductions[round / 2 % 2];
    const double digit_weight = among({0, 0.25, 1, 3}), parity_weight = among({0.5, 1, 2});
    const int64_t examples = 1 + static_cast<int64_t>(random() % 7);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << digit_weight << ", "
                                      << parity_weight << ", " << examples << " examples");
    const testing::Arrays weights = FirstWeights(round);
    const StepResult both =
        Step(RecipeOf({Times(Digit(a), digit_weight), Times(Parity(b), parity_weight)}), weights,
             examples, round);
    const StepResult digit = Step(RecipeOf({Digit(a)}), weights, examples, round);
    const StepResult parity = Step(RecipeOf({Parity(b)}), weights, examples, round);
    double penalty = 0;
    for (const auto& at : weights.at("trunk.kernel").at) {
      penalty += kPenalty * static_cast<double>(at * at);
    }
    for (const auto& [name, weight] : weights) {
      for (size_t i = 0; i < weight.at.size(); ++i) {
        const double of_penalty =
            name == "trunk.kernel" ? 2 * kPenalty * static_cast<double>(weight.at[i]) : 0;
        const auto alone = [&](const StepResult& step) {
          return step.states.contains(name) ? GradientOf(step, weights, name, i) - of_penalty : 0;
        };
        EXPECT_NEAR(GradientOf(both, weights, name, i),
                    digit_weight * alone(digit) + parity_weight * alone(parity) + of_penalty, 1e-12)
            << name << " " << i;
      }
    }
    EXPECT_NEAR(Figure(both, "digit_loss"), Figure(digit, "loss") - penalty, 1e-12);
    EXPECT_NEAR(Figure(both, "parity_loss"), Figure(parity, "loss") - penalty, 1e-12);
    EXPECT_NEAR(Figure(both, "loss"),
                digit_weight * Figure(both, "digit_loss") +
                    parity_weight * Figure(both, "parity_loss") + penalty,
                1e-12);
    EXPECT_EQ(Figure(both, "digit_accuracy"), Figure(digit, "accuracy"));
    EXPECT_EQ(Figure(both, "parity_accuracy"), Figure(parity, "accuracy"));
  }
}

// By the definition of each, from the weights on.
TEST(HeadsTest, LossesAreThoseOfTheDefinitions) {
  const int64_t examples = 5;
  const testing::Arrays w = FirstWeights(3), batch = BatchOf(examples, 3);
  const auto at = [](const Array& of, int64_t row, int64_t column) {
    return static_cast<double>(of.at[static_cast<size_t>(row * of.type.dims.back() + column)]);
  };
  double digit = 0, parity = 0;
  for (int64_t n = 0; n < examples; ++n) {
    double hidden[5], logits[kClasses], odd = static_cast<double>(w.at("parity.bias").at[0]);
    for (int64_t j = 0; j < 5; ++j) {
      double sum = static_cast<double>(w.at("trunk.bias").at[static_cast<size_t>(j)]);
      for (int64_t i = 0; i < kFeatures; ++i) {
        sum += at(batch.at("x"), n, i) * at(w.at("trunk.kernel"), i, j);
      }
      hidden[j] = std::tanh(sum);
      odd += hidden[j] * at(w.at("parity.kernel"), j, 0);
    }
    double total = 0;
    for (int64_t c = 0; c < kClasses; ++c) {
      logits[c] = static_cast<double>(w.at("digit.bias").at[static_cast<size_t>(c)]);
      for (int64_t j = 0; j < 5; ++j) logits[c] += hidden[j] * at(w.at("digit.kernel"), j, c);
      total += std::exp(logits[c]);
    }
    const auto label = static_cast<int64_t>(batch.at("digit").at[static_cast<size_t>(n)]);
    digit += (std::log(total) - logits[label]) / static_cast<double>(examples);
    const double share = 1 / (1 + std::exp(-odd));
    parity -= std::log(label % 2 == 1 ? share : 1 - share) / static_cast<double>(examples);
  }
  double penalty = 0;
  for (const auto& kernel : w.at("trunk.kernel").at) {
    penalty += kPenalty * static_cast<double>(kernel * kernel);
  }
  const StepResult step =
      Step(RecipeOf({Times(Digit(), 0.75), Times(Parity(), 0.2)}), w, examples, 3, false);
  EXPECT_NEAR(Figure(step, "digit_loss"), digit, 1e-12);
  EXPECT_NEAR(Figure(step, "parity_loss"), parity, 1e-12);
  EXPECT_NEAR(Figure(step, "loss"), 0.75 * digit + 0.2 * parity + penalty, 1e-12);
}

// The order of the heads is not that of the model's outputs.
TEST(HeadsTest, EachGoesToTheOutputOfItsName) {
  const testing::Arrays weights = FirstWeights(1);
  const StepResult one = Step(RecipeOf({Digit(), Parity()}), weights, 6, 1);
  const StepResult other = Step(RecipeOf({Parity(), Digit()}), weights, 6, 1);
  EXPECT_NEAR(Figure(one, "digit_loss"), Figure(other, "digit_loss"), 1e-14);
  for (const auto& [name, state] : one.states) {
    for (size_t i = 0; i < state.at.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(state.at[i]),
                  static_cast<double>(other.states.at(name).at[i]), 1e-14);
    }
  }
}

// 3 divides neither batch, and 8 is more than the last has: parts have different numbers of
// examples.
TEST(HeadsTest, PartsOfABatchGiveItsStep) {
  for (const LossReduction reduction : {LossReduction::kMean, LossReduction::kSum}) {
    const std::vector<Head> heads = {Times(Digit(reduction), 0.5), Times(Parity(), 2)};
    const testing::Arrays weights = FirstWeights(5);
    for (const int64_t examples : {8, 5}) {
      const StepResult whole = Step(RecipeOf(heads), weights, examples, 5);
      for (const int64_t parts : {2, 3, 8}) {
        Recipe recipe = RecipeOf(heads);
        recipe.accumulate = parts;
        const StepResult got = Step(recipe, weights, examples, 5);
        for (const auto& [name, state] : whole.states) {
          for (size_t i = 0; i < state.at.size(); ++i) {
            EXPECT_NEAR(static_cast<double>(got.states.at(name).at[i]),
                        static_cast<double>(state.at[i]), 1e-13)
                << name << " in " << parts << " parts";
          }
        }
        ASSERT_EQ(got.outputs.size(), whole.outputs.size());
        for (const auto& [name, figure] : whole.outputs) {
          for (size_t i = 0; i < figure.at.size(); ++i) {
            EXPECT_NEAR(static_cast<double>(got.outputs.at(name).at[i]),
                        static_cast<double>(figure.at[i]),
                        name.ends_with("accuracy") ? 1e-6 : 1e-12)
                << name << " in " << parts << " parts";
          }
        }
      }
    }
  }
}

TEST(HeadsTest, AScaledLossGivesTheSameStep) {
  const testing::Arrays weights = FirstWeights(2);
  Recipe recipe = RecipeOf({Digit(), Times(Parity(), 0.3)});
  const StepResult plain = Step(recipe, weights, 6, 2);
  recipe.loss_scale = 1024;
  const StepResult scaled = Step(recipe, weights, 6, 2);
  EXPECT_EQ(Figure(scaled, "loss"), Figure(plain, "loss"));
  for (const auto& [name, state] : plain.states) {
    for (size_t i = 0; i < state.at.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(scaled.states.at(name).at[i]),
                  static_cast<double>(state.at[i]), 1e-14);
    }
  }
}

// Layers compute in 16 bits; each loss is of predictions in f32.
TEST(HeadsTest, LossesAreOfF32WhateverLayersComputeIn) {
  const std::vector<TensorType> types = {
      {DType::kF32, {4, kFeatures}}, {DType::kI32, {4}}, {DType::kF32, {4}}};
  Recipe recipe = RecipeOf({Digit(), Parity()});
  recipe.compute = DType::kBF16;
  const auto programs = BuildPrograms(recipe, types);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  for (const Program* p : {&programs->train_step, &programs->eval_step}) {
    for (const program::Port& output : p->outputs) {
      EXPECT_FALSE(mesh::IsHalf(p->type(output.value).dtype)) << output.name;
    }
    for (const program::Op& op : p->ops) {
      if (op.kind.find("crossentropy") == std::string::npos &&
          op.kind.find("cross_entropy") == std::string::npos) {
        continue;
      }
      for (const program::ValueId v : op.operands) EXPECT_FALSE(mesh::IsHalf(p->type(v).dtype));
    }
  }
  const NamedInput x{"x", types[0]};
  const auto prediction = BuildPrediction(*recipe.model, {&x, 1}, 0, DType::kBF16);
  ASSERT_TRUE(prediction.ok()) << prediction.status().message();
  ASSERT_EQ(prediction->program.outputs.size(), 2u);
  EXPECT_EQ(prediction->program.outputs[0].name, "digit");
  EXPECT_EQ(prediction->program.outputs[1].name, "parity");
  for (const program::Port& output : prediction->program.outputs) {
    EXPECT_EQ(prediction->program.type(output.value).dtype, DType::kF32);
  }
}

// Two outputs may be compared with the same labels, which must then be what both take.
TEST(HeadsTest, SeveralMayShareTheirLabels) {
  Head other = Parity();
  other.labels = "digit";
  const auto programs = BuildPrograms(RecipeOf({Digit(), other}), TypesOf(4));
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  EXPECT_EQ(programs->classes, (std::map<std::string, int64_t>{{"digit", 2}}));
}

TEST(HeadsTest, MistakesSayWhichHead) {
  const auto error = [](std::vector<Head> heads, auto change) {
    Recipe recipe = RecipeOf({Digit(), Parity()});
    recipe.heads = std::move(heads);
    change(recipe);
    return std::string(BuildPrograms(recipe, TypesOf(4)).status().message());
  };
  const auto nothing = [](Recipe&) {};
  const std::string expected =
      "heads: expected one for each of the model's outputs, `digit`, `parity`, got: ";
  EXPECT_EQ(error({Digit()}, nothing), expected + "none of `parity`");
  EXPECT_EQ(error({Digit(), Parity(), Digit()}, [](Recipe& r) { r.heads[2].metrics = {}; }),
            "BuildPrograms: two outputs are named `digit_loss`");
  EXPECT_EQ(error({Digit(), Head(Parity())}, [](Recipe& r) { r.heads[1].output = "parita"; }),
            expected + "`parita`");
  EXPECT_EQ(error({Digit(), Parity()}, [](Recipe& r) { r.heads[1].output = ""; }),
            expected + "one without a name");
  EXPECT_EQ(
      error({Digit(), Parity()},
            [](Recipe& r) { r.model = std::make_shared<nn::Sequential>(nn::Dense(4)); }),
      "heads: expected one for each of the model's outputs, one without a name, got: `digit`");
  EXPECT_EQ(error({Digit(), Times(Parity(), -1)}, nothing),
            "parity: weight: expected a number of at least 0, got: -1.000000");
  EXPECT_EQ(error({Digit(), Parity()}, [](Recipe& r) { r.heads[1].labels = "even"; }),
            "parity: labels: expected one of the batch's components, x, digit, odd, got: even");
  EXPECT_EQ(
      error({Digit(), Parity()}, [](Recipe& r) { r.heads[0].labels = "odd"; }),
      "digit: sparse_categorical_crossentropy takes class numbers (u8, i32, i64), got: labels "
      "f64[4]");
  EXPECT_EQ(error({Digit(), Parity()},
                  [](Recipe& r) { r.heads[1].metrics = {metrics::CategoricalAccuracy()}; }),
            "parity: categorical_accuracy: expected labels f64[4,1] beside predictions f64[4,1], "
            "got: labels f64[4]");
  EXPECT_EQ(error({Digit(), Parity()}, [](Recipe& r) { r.heads[1].loss = {}; }),
            "BuildPrograms: a recipe needs a model, a loss and an optimizer");
  EXPECT_EQ(error({}, nothing), "BuildPrograms: a recipe needs a model, a loss and an optimizer");
  // Names that are alike once the outputs' stand before them.
  Head twice = Digit();
  twice.metrics = {metrics::Accuracy("loss")};
  EXPECT_EQ(error({twice, Parity()}, nothing), "BuildPrograms: two outputs are named `digit_loss`");
  // A text is written by one output.
  const nn::Symbol ids = nn::Input();
  const nn::Symbol vectors = nn::Apply(nn::Make<nn::Embedding>(9, 4), ids);
  nn::Functional writer({ids}, {{"next", vectors}, {"again", vectors}});
  const NamedInput text{"x", {DType::kI32, {1, 8}}};
  const std::string one = "expected a model of one output, got: next, again";
  EXPECT_EQ(BuildNext(writer, text, Digit().loss, 0).status().message(), one);
  EXPECT_EQ(BuildNextById(writer, text, Digit().loss, 0).status().message(), one);
}

}  // namespace
}  // namespace meshtrain::train
