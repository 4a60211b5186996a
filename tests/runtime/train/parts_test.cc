// A batch that is computed in parts (Recipe::accumulate): the step of the whole batch, whatever the
// optimizer does with the gradient and however many examples the batch has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/model.h"
#include "runtime/train/programs.h"
#include "runtime/train/schedules.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::train {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Interpret;
using meshtrain::testing::StepInput;
using meshtrain::testing::StepResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kFeatures = 3, kClasses = 4;

std::vector<TensorType> TypesOf(int64_t examples) {
  return {{DType::kF64, {examples, kFeatures}}, {DType::kI32, {examples}}};
}

testing::Arrays BatchOf(int64_t examples, int64_t seed) {
  testing::Arrays batch;
  const std::vector<TensorType> types = TypesOf(examples);
  Array x(types[0]), y(types[1]);
  for (size_t i = 0; i < x.at.size(); ++i) {
    x.at[i] = std::sin(static_cast<double>(i * i) + static_cast<double>(seed));
  }
  for (size_t i = 0; i < y.at.size(); ++i) {
    y.at[i] = static_cast<double>((static_cast<int64_t>(i) * 5 + seed) % kClasses);
  }
  batch["x"] = std::move(x);
  batch["y"] = std::move(y);
  return batch;
}

Recipe SmallRecipe(std::shared_ptr<Optimizer> optimizer) {
  Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Dense(5, {.activation = nn::ActivationKind::kTanh, .kernel_regularizer = nn::L2(0.01)}),
      nn::Dense(kClasses));
  recipe.heads[0].loss = losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = std::move(optimizer);
  recipe.heads[0].metrics = {metrics::Accuracy()};
  recipe.seed = 3;
  return recipe;
}

struct Trained {
  testing::Arrays states;
  std::vector<double> figures;  // of each step, and of an evaluation
};

// Batches of these sizes, one after the other, from the first weights.
Trained Train(const Recipe& recipe, const std::vector<int64_t>& sizes) {
  Trained out;
  const auto note = [&](const Result<StepResult>& result) {
    ASSERT_TRUE(result.ok()) << result.status().message();
    for (const char* name : {"loss", "accuracy"}) {
      out.figures.push_back(static_cast<double>(result->outputs.at(name).at[0]));
    }
  };
  for (size_t step = 0; step < sizes.size(); ++step) {
    const auto programs = BuildPrograms(recipe, TypesOf(sizes[step]));
    EXPECT_TRUE(programs.ok()) << programs.status().message();
    if (!programs.ok()) return out;
    if (step == 0) {
      StepInput zeros;
      for (const Parameter& state : programs->States()) {
        zeros.states[state.name()] = Array(state.type());
      }
      out.states = Interpret(programs->init, zeros).value().states;
    }
    StepInput in{BatchOf(sizes[step], static_cast<int64_t>(step)), out.states};
    const auto trained = Interpret(programs->train_step, in);
    note(trained);
    if (!trained.ok()) return out;
    out.states = trained->states;
    in.states = out.states;
    note(Interpret(programs->eval_step, in));
  }
  return out;
}

double Difference(const Trained& a, const Trained& b) {
  double most = 0;
  for (const auto& [name, array] : a.states) {
    const Array& other = b.states.at(name);
    for (size_t i = 0; i < array.at.size(); ++i) {
      most = std::max(most, static_cast<double>(std::fabs(array.at[i] - other.at[i])));
    }
  }
  return most;
}

struct Case {
  std::string name;
  std::function<std::shared_ptr<Optimizer>()> optimizer;
  std::function<std::shared_ptr<Optimizer>()> unclipped = nullptr;  // none: nothing is clipped
  LossReduction reduction = LossReduction::kMean;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"SgdWithMomentumClipped",
     [] {
       return Sgd(
           {.common = {.learning_rate = 0.5, .clipnorm = 0.2}, .momentum = 0.9, .nesterov = true});
     },
     [] { return Sgd({.common = {.learning_rate = 0.5}, .momentum = 0.9, .nesterov = true}); }},
    {"AdamClippedTogetherOnASchedule",
     [] {
       return Adam(
           {.common = {.learning_rate = schedules::CosineDecay({.initial = 0.1, .decay_steps = 4}),
                       .global_clipnorm = 0.1}});
     },
     [] {
       return Adam({.common = {.learning_rate =
                                   schedules::CosineDecay({.initial = 0.1, .decay_steps = 4})}});
     }},
    {"AdamWClippedByValue",
     [] {
       return AdamW({.common = {.learning_rate = 0.1, .clipvalue = 0.01, .weight_decay = 0.1}});
     },
     [] { return AdamW({.common = {.learning_rate = 0.1, .weight_decay = 0.1}}); }},
    {"SumOfLosses", [] { return Sgd({.common = {.learning_rate = 0.05}}); }, nullptr,
     LossReduction::kSum},
};

class PartsTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, PartsTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(PartsTest, GiveTheStepOfTheWholeBatch) {
  // Two full batches and a short last one; 3 divides none of them, and 8 is more than the last has.
  const std::vector<int64_t> sizes = {8, 8, 5};
  Recipe recipe = SmallRecipe(GetParam().optimizer());
  recipe.heads[0].loss.reduction = GetParam().reduction;
  const Trained whole = Train(recipe, sizes);
  for (const int64_t parts : {2, 3, 8}) {
    Recipe in_parts = SmallRecipe(GetParam().optimizer());
    in_parts.heads[0].loss.reduction = GetParam().reduction;
    in_parts.accumulate = parts;
    const Trained got = Train(in_parts, sizes);
    ASSERT_EQ(got.states.size(), whole.states.size());
    EXPECT_LT(Difference(got, whole), 1e-13) << parts << " parts";
    ASSERT_EQ(got.figures.size(), 2 * 2 * sizes.size());
    for (size_t i = 0; i < got.figures.size(); ++i) {
      // The accuracy is in f32.
      EXPECT_NEAR(got.figures[i], whole.figures[i], i % 2 == 0 ? 1e-13 : 1e-6) << parts << " parts";
    }
  }
  if (GetParam().unclipped == nullptr) return;
  EXPECT_GT(Difference(Train(SmallRecipe(GetParam().unclipped()), sizes), whole), 1e-3)
      << "nothing was clipped, so the case shows nothing";
}

TEST(PartsOnceTest, AnUpdateIsOneStepOfTheOptimizer) {
  Recipe recipe = SmallRecipe(Adam());
  recipe.accumulate = 4;
  EXPECT_EQ(Train(recipe, {8, 5}).states.at("optimizer.iterations").at[0], 2);
}

// Example e is of part e % n, and each part moves the averages by its own statistics.
TEST(PartsOnceTest, BatchStatisticsAreAPartsOwn) {
  Recipe recipe = SmallRecipe(Sgd());
  recipe.model = std::make_shared<nn::Sequential>(nn::BatchNormalization({.momentum = 0.9}),
                                                  nn::Dense(kClasses));
  recipe.accumulate = 2;
  const Trained got = Train(recipe, {8});
  const Array x = BatchOf(8, 0).at("x");
  for (int feature = 0; feature < kFeatures; ++feature) {
    double moving = 0;
    for (const int part : {0, 1}) {
      double mean = 0;
      for (int e = part; e < 8; e += 2) {
        mean += static_cast<double>(x.at[e * kFeatures + feature]) / 4;
      }
      moving = moving * 0.9 + mean * 0.1;
    }
    EXPECT_NEAR(static_cast<double>(got.states.at("batch_normalization.moving_mean").at[feature]),
                moving, 1e-13);
  }
}

TEST(PartsOnceTest, DropoutDrawsAnewForEachPart) {
  Recipe recipe = SmallRecipe(Sgd());
  recipe.model = std::make_shared<nn::Sequential>(nn::Dropout(0.5), nn::Dense(kClasses));
  recipe.accumulate = 3;
  EXPECT_EQ(Train(recipe, {8, 8}).states.at("step").at[0], 6);
}

// What ids must be is asked of all of them, though each part looks some up.
TEST(PartsOnceTest, IdsAreStillKnownAsIds) {
  Recipe recipe = SmallRecipe(Sgd());
  recipe.model =
      std::make_shared<nn::Sequential>(nn::Embedding(11, 2), nn::Flatten(), nn::Dense(kClasses));
  const std::vector<TensorType> types = {{DType::kI32, {6, 5}}, {DType::kI32, {6}}};
  recipe.accumulate = 3;
  const auto programs = BuildPrograms(recipe, types);
  ASSERT_TRUE(programs.ok()) << programs.status().message();
  EXPECT_THAT(programs->rows, ElementsAre(std::pair<const std::string, int64_t>("x", 11)));
  EXPECT_EQ(programs->classes, (std::map<std::string, int64_t>{{"y", kClasses}}));
}

TEST(PartsOnceTest, OnePartIsTheProgramAsItWas) {
  const auto one = BuildPrograms(SmallRecipe(Adam()), TypesOf(8));
  ASSERT_TRUE(one.ok());
  for (const program::Op& op : one->train_step.ops)
    EXPECT_EQ(op.path.find("part"), std::string::npos);
  Recipe recipe = SmallRecipe(Adam());
  recipe.accumulate = 4;
  const auto of_one_example = BuildPrograms(recipe, TypesOf(1));
  ASSERT_TRUE(of_one_example.ok());
  EXPECT_EQ(of_one_example->train_step.ToString(),
            BuildPrograms(SmallRecipe(Adam()), TypesOf(1))->train_step.ToString());
}

TEST(PartsOnceTest, RefuseWhatCannotBeCut) {
  const auto error = [](int64_t parts, const std::vector<TensorType>& types) {
    Recipe recipe = SmallRecipe(Sgd());
    recipe.accumulate = parts;
    return BuildPrograms(recipe, types).status().message();
  };
  EXPECT_EQ(error(0, TypesOf(8)), "accumulate: expected a number of parts from 1 to 64, got: 0");
  EXPECT_EQ(error(65, TypesOf(8)), "accumulate: expected a number of parts from 1 to 64, got: 65");
  EXPECT_EQ(error(2, {{DType::kF64, {8, 3}}, {DType::kI32, {4}}}),
            "accumulate: expected components [N, ...] of the same N, got: x f64[8,3], y i32[4]");
  EXPECT_EQ(error(2, {{DType::kF64, {}}, {DType::kI32, {4}}}),
            "accumulate: expected components [N, ...] of the same N, got: x f64[], y i32[4]");
}

}  // namespace
}  // namespace meshtrain::train
