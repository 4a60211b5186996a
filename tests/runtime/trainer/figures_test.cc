// Figures over examples: the same under every strategy, on any number of devices and processes, and
// beside parameter servers; of the same examples each time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/loss.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::DType;
using mesh::Tensor;

constexpr int64_t kExamples = 13, kClasses = 4, kClass = 1;

// Logits, and the class that is right.
std::vector<Tensor> LogitsAndLabels() {
  Tensor x(mesh::TensorType{DType::kF32, {kExamples, kClasses}});
  Tensor y(mesh::TensorType{DType::kI32, {kExamples}});
  for (int64_t i = 0; i < kExamples * kClasses; ++i) {
    x.mutable_values<float>()[static_cast<size_t>(i)] = 2 * std::sin(static_cast<float>(i * i));
  }
  for (int64_t i = 0; i < kExamples; ++i) {
    y.mutable_values<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i * i % 3);
  }
  return {x, y};
}

// By the definitions, from all examples.
struct Wanted {
  double perplexity = 0, precision = 0, recall = 0, auc = 0;
};
Wanted ByDefinition(const std::vector<Tensor>& data, int64_t bins) {
  double loss = 0, said = 0, positive = 0, both = 0;
  std::vector<std::pair<double, bool>> judged;  // the bin of the probability, and whether it is
  for (int64_t i = 0; i < kExamples; ++i) {
    const float* x = data[0].values<float>().data() + i * kClasses;
    const int32_t y = data[1].values<int32_t>()[static_cast<size_t>(i)];
    double sum = 0;
    for (int64_t c = 0; c < kClasses; ++c) sum += std::exp(static_cast<double>(x[c]));
    loss += std::log(sum) - static_cast<double>(x[y]);
    const bool says = std::max_element(x, x + kClasses) - x == kClass, is = y == kClass;
    said += says;
    positive += is;
    both += says && is;
    const double p = std::exp(static_cast<double>(x[kClass])) / sum;
    judged.emplace_back(std::ceil(p * static_cast<double>(bins)), is);
  }
  // Of all pairs of a positive and a negative example, those in the right order; those that share a
  // bin count half.
  double right = 0;
  for (const auto& [bin, is] : judged) {
    for (const auto& [other, other_is] : judged) {
      if (is && !other_is) right += bin > other ? 1 : bin == other ? 0.5 : 0;
    }
  }
  return {std::exp(loss / kExamples), both / said, both / positive,
          right / (positive * (kExamples - positive))};
}

class FiguresTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, FiguresTest, ::testing::ValuesIn(strategy::ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

// Weights that never change, and batches of which the last one leaves replicas without an example.
TEST_P(FiguresTest, SumsAreOverAllExamplesWhateverTheBatches) {
  const std::vector<Tensor> data = LogitsAndLabels();
  constexpr int64_t kThresholds = 21;
  const Wanted want = ByDefinition(data, kThresholds - 1);
  ASSERT_GT(want.precision, 0);
  ASSERT_LT(want.precision, 1);
  ASSERT_GT(want.auc, 0.3);
  ASSERT_LT(want.auc, 0.95);
  strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
    const auto layer = std::make_shared<nn::Sequential>(nn::Dense(kClasses, {.use_bias = false}));
    Model model(layer, strategy);
    constexpr int64_t kBatch = 6;
    MT_RETURN_IF_ERROR(model.Build(mesh::TensorType{DType::kF32, {kBatch, kClasses}}));
    const Tensor same = strategy::Floats({4, 4}, {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
    MT_RETURN_IF_ERROR(strategy.Assign(model.parameters()[0], same));
    namespace metrics = train::metrics;
    MT_RETURN_IF_ERROR(model.Compile(
        {.loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
         .optimizer = train::Sgd({.common = {.learning_rate = 0}}),
         .metrics = {metrics::Perplexity(), metrics::Precision("precision", {.class_id = kClass}),
                     metrics::Recall("recall", {.class_id = kClass}),
                     metrics::Auc("auc", {.num_thresholds = kThresholds, .class_id = kClass})}}));
    MT_ASSIGN_OR_RETURN(const auto train, strategy::ArraysPipeline(data, kBatch));
    MT_ASSIGN_OR_RETURN(const auto validation, strategy::ArraysPipeline(data, kBatch));
    MT_ASSIGN_OR_RETURN(const History history,
                        model.Fit(*train, {.epochs = 2, .validation = validation.get()}));
    MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(*validation));
    const auto is = [&](const std::string& name, double figure, double tolerance) -> Status {
      const auto once = train::FindScalar(evaluated, name);
      MT_WANT(once && std::abs(*once - figure) <= tolerance);
      for (const std::string& of : {name, "val_" + name}) {
        const std::vector<double> epochs = history.Of(of);
        MT_WANT(epochs.size() == 2 && std::abs(epochs[0] - figure) <= tolerance &&
                std::abs(epochs[1] - figure) <= tolerance);
      }
      return OkStatus();
    };
    MT_RETURN_IF_ERROR(is("perplexity", want.perplexity, 1e-6));  // losses are of f32
    MT_RETURN_IF_ERROR(is("precision", want.precision, 1e-12));
    MT_RETURN_IF_ERROR(is("recall", want.recall, 1e-12));
    MT_RETURN_IF_ERROR(is("auc", want.auc, 1e-12));
    return OkStatus();
  });
}

// 7 examples in batches of 4, of which the last one is short.
TEST_P(FiguresTest, AnEstimatorsMeansAreOverAllExamples) {
  strategy::ForStrategy(GetParam(), [](strategy::Strategy& strategy) -> Status {
    const Tensor x = strategy::Floats({7, 1}, {-3, -2, -1, 0, 1, 2, 4});
    const Tensor y = strategy::Floats({7}, {1, 0, 1, 1, 0, 1, 1});
    for (const bool binary : {false, true}) {
      Model model(std::make_shared<nn::Sequential>(
                      nn::Dense(1, {.name = binary ? "binary" : "squared",
                                    .use_bias = false,
                                    .kernel_initializer = nn::Initializer::Constant(2)})),
                  strategy);
      MT_RETURN_IF_ERROR(model.Compile(
          {.loss = binary ? train::losses::BinaryCrossentropy({.from_logits = true})
                          : train::losses::MeanSquaredError(),
           .optimizer = train::Sgd({.common = {.learning_rate = 0}}),
           .metrics = {train::metrics::LabelMean(), train::metrics::PredictionMean()}}));
      MT_ASSIGN_OR_RETURN(const train::Scalars figures, model.Evaluate(Arrays{x, y, 4}));
      double predicted = 0;
      for (const float number : x.values<float>()) {
        predicted += binary ? 1 / (1 + std::exp(-2.0 * number)) : 2.0 * number;
      }
      MT_WANT(std::abs(train::FindScalar(figures, "label_mean").value() - 5.0 / 7) <= 1e-6);
      MT_WANT(std::abs(train::FindScalar(figures, "prediction_mean").value() - predicted / 7) <=
              1e-6);
    }
    return OkStatus();
  });
}

// Weights that never change: a validation of some steps is of the same examples after each epoch,
// and Evaluate's with as many steps, however a shuffle orders each pass.
TEST_P(FiguresTest, AValidationOfSomeStepsIsOfTheSameExamplesEachTime) {
  for (const bool shuffled : {false, true}) {
    strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
      const auto held_out = [&] {
        data::PipelineSpec spec{.source = {.from = data::MemoryArrays{LogitsAndLabels()}}};
        if (shuffled) spec.stages.emplace_back(data::ShuffleStage{.buffer = kExamples, .seed = 5});
        spec.stages.emplace_back(data::BatchStage{4});
        spec.stages.emplace_back(data::PrefetchStage{2});
        return data::Pipeline::Create(std::move(spec));
      };
      Model model(std::make_shared<nn::Sequential>(nn::Dense(kClasses)), strategy);
      MT_RETURN_IF_ERROR(model.Compile(
          {.loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
           .optimizer = train::Sgd({.common = {.learning_rate = 0}})}));
      MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline(LogitsAndLabels(), 4));
      MT_ASSIGN_OR_RETURN(const auto validation, held_out());
      MT_ASSIGN_OR_RETURN(
          const History history,
          model.Fit(*data, {.epochs = 4, .validation = validation.get(), .validation_steps = 2}));
      MT_ASSIGN_OR_RETURN(const auto again, held_out());
      MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(*again, 2));
      const double want = train::FindScalar(evaluated, "loss").value();
      const std::vector<double> losses = history.Of("val_loss");
      MT_WANT(losses.size() == 4);
      for (const double loss : losses) MT_WANT(std::abs(loss - want) <= 1e-12);
      // Those of a whole pass are others.
      MT_ASSIGN_OR_RETURN(const train::Scalars whole, model.Evaluate(*again));
      const double all = train::FindScalar(whole, "loss").value();
      MT_WANT(std::abs(all - want) > 1e-4);
      // More steps than a pass has are the pass, each time; in another order, so to f32's rounding.
      MT_ASSIGN_OR_RETURN(const train::Scalars most, model.Evaluate(*again, kExamples));
      MT_WANT(std::abs(train::FindScalar(most, "loss").value() - all) <= 1e-6);
      MT_ASSIGN_OR_RETURN(
          const History long_history,
          model.Fit(*data,
                    {.epochs = 3, .validation = again.get(), .validation_steps = kExamples}));
      for (const double loss : long_history.Of("val_loss")) MT_WANT(std::abs(loss - all) <= 1e-6);
      return OkStatus();
    });
  }
}

}  // namespace
}  // namespace meshtrain::trainer
