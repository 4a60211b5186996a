// What data a Model takes, and what it says of data that it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::Tensor;
using strategy::Floats;
using ::testing::HasSubstr;

Tensor X() { return Floats({6, 2}, {1, 2, 3, 1, 0, 1, 2, 2, 1, 1, 4, 0}); }
Tensor Y() { return Floats({6, 1}, {1, 2, 3, 4, 5, 6}); }

std::unique_ptr<data::Pipeline> Batches(std::vector<data::Stage> stages) {
  return data::Pipeline::Create({.source = {.from = data::MemoryArrays{.components = {X(), Y()}}},
                                 .stages = std::move(stages)})
      .value();
}

class ModelDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(model_
                    .Compile({.loss = train::losses::MeanSquaredError(),
                              .optimizer = train::Sgd({.common = {.learning_rate = 0.0}})})
                    .ok());
  }
  const std::unique_ptr<strategy::ReplicaStrategy> strategy_ =
      strategy::Strategy::Default().value();
  Model model_{std::make_shared<nn::Sequential>(nn::Dense(1)), *strategy_};
};

TEST_F(ModelDataTest, ValidationHasAPipelineOfItsOwn) {
  const auto data = Batches({data::BatchStage{2}}), other = Batches({data::BatchStage{2}});
  const Status refused =
      model_.Fit(*data, {.validation = data.get(), .validation_steps = 1}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("validation: expected a pipeline of its own"));
  EXPECT_TRUE(model_.Fit(*data, {.validation = other.get(), .validation_steps = 1}).ok());
}

TEST_F(ModelDataTest, DataWithoutAnEndTakesANumberOfSteps) {
  for (const std::vector<data::Stage>& stages :
       {std::vector<data::Stage>{data::RepeatStage{}, data::BatchStage{2}},
        std::vector<data::Stage>{data::BatchStage{2}, data::RepeatStage{}}}) {
    const auto endless = Batches(stages), data = Batches({data::BatchStage{2}});
    const auto refused = [](const Status& status, const std::string& what) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(what));
    };
    const std::string expected = ": expected at least 1 with data that repeats for ever, got: -1";
    refused(model_.Fit(*endless).status(), "fit: steps_per_epoch" + expected);
    refused(model_.Fit(*data, {.validation = endless.get()}).status(),
            "fit: validation_steps" + expected);
    refused(model_.Evaluate(*endless).status(), "evaluate: steps" + expected);
    refused(model_.Predict(*endless).status(), "expected data of which a pass ends");
    const auto history = model_.Fit(*endless, {.epochs = 2, .steps_per_epoch = 4});
    EXPECT_TRUE(history.ok()) << history.status().ToString();
    EXPECT_TRUE(model_.Evaluate(*endless, 4).ok());
    EXPECT_TRUE(
        model_.Fit(*data, {.validation = Batches(stages).get(), .validation_steps = 4}).ok());
  }
  const NamedData named{.name = "endless",
                        .spec = {.source = {.from = data::MemoryArrays{.components = {X(), Y()}}},
                                 .stages = {data::BatchStage{2}, data::RepeatStage{}}}};
  EXPECT_EQ(model_.Fit(named).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ModelDataTest, ABadStepHasNoPartInTheProgressBar) {
  Tensor x = X();
  x.mutable_values<float>()[0] = std::nanf("");
  std::vector<double> losses;
  std::vector<int64_t> steps;
  train::FunctionCallback each;
  each.on_step_end = [&](const train::StepInfo& info) {
    losses.push_back(train::FindScalar(info.scalars, "loss").value());
    return OkStatus();
  };
  each.on_bad_step = [&](const train::BadStepInfo&) {
    steps.push_back(model_.steps());
    return OkStatus();
  };
  const auto history =
      model_.Fit(Arrays{x, Y(), 2}, {.epochs = 3, .end_after_bad_steps = 2, .callbacks = {&each}});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 4, 7}));
  ASSERT_EQ(losses.size(), 6u);  // the second and third batch of each epoch, whose rate is 0
  const double mean = (losses[0] + losses[1]) / 2;
  ASSERT_EQ(history->keras_bar.size(), 3u);
  for (const train::Scalars& shown : history->keras_bar) {
    EXPECT_NEAR(train::FindScalar(shown, "loss").value(), (losses[0] + mean + mean) / 3, 1e-6);
  }
}

TEST_F(ModelDataTest, PredictionsAreOfWhatWasCompiledLast) {
  const Tensor x = Floats({1, 2}, {1.2345678F, 2.3456789F});
  const auto predicted = [&](Model& model) {
    return strategy::FloatsOf(model.PredictOnBatch(x).value())[0];
  };
  const float whole = predicted(model_);
  const auto compile = [](Model& model, std::optional<mesh::DType> compute) {
    return model.Compile(
        {.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd(), .compute = compute});
  };
  ASSERT_TRUE(compile(model_, mesh::DType::kBF16).ok());
  const float half = predicted(model_);
  EXPECT_NE(half, whole);
  EXPECT_NEAR(half, whole, 0.05);
  ASSERT_TRUE(compile(model_, {}).ok());
  EXPECT_EQ(predicted(model_), whole);
}

}  // namespace
}  // namespace meshtrain::trainer
