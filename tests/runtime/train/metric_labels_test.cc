// Which labels a metric takes beside those that its loss does.
#include <gtest/gtest.h>

#include "runtime/nn/model.h"
#include "runtime/train/programs.h"

namespace meshtrain::train {
namespace {

using program::DType;

// As many examples as classes: whatever does not fit would be compared all the same.
const TensorType kNumbers{DType::kI32, {4}}, kShares{DType::kF32, {4, 4}};

Status Traced(const Loss& loss, const Metric& metric, const TensorType& labels, int64_t units = 4) {
  Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(nn::Dense(units));
  recipe.heads[0].loss = loss;
  recipe.optimizer = Sgd({});
  recipe.heads[0].metrics = {metric};
  return BuildPrograms(recipe, {DType::kF32, {labels.dims[0], 3}}, labels).status();
}

TEST(MetricLabelsTest, WhatDoesNotFitIsRefused) {
  const Loss of_numbers = losses::SparseCategoricalCrossentropy();
  for (const Metric& metric :
       {metrics::CategoricalAccuracy("it"), metrics::TopKCategoricalAccuracy("it", 1),
        metrics::BinaryAccuracy("it"), metrics::MeanSquaredError("it"),
        metrics::MeanAbsoluteError("it"), metrics::LabelMean("it"),
        metrics::PredictionMean("it")}) {
    EXPECT_EQ(Traced(of_numbers, metric, kNumbers),
              InvalidArgument("it: expected labels i32[4,4] beside predictions f32[4,4], got: "
                              "labels i32[4]"));
  }
  for (const Loss& of_shares : {losses::CategoricalCrossentropy(), losses::MeanSquaredError()}) {
    for (const Metric& metric : {metrics::SparseCategoricalAccuracy("it"),
                                 metrics::SparseTopKCategoricalAccuracy("it", 2)}) {
      EXPECT_EQ(Traced(of_shares, metric, kShares),
                InvalidArgument("it: expected labels f32[4] beside predictions f32[4,4], got: "
                                "labels f32[4,4]"));
    }
  }
  // Predictions without classes: the largest of them is a place in the batch.
  const Metric shares = metrics::CategoricalAccuracy(),
               numbers = metrics::SparseCategoricalAccuracy();
  for (const Metric& metric : {shares, numbers}) {
    EXPECT_EQ(metric.CheckLabels({DType::kF32, {4}}, {DType::kF32, {4}}),
              InvalidArgument(metric.name + ": expected predictions [N, classes], got: f32[4]"));
  }
}

TEST(MetricLabelsTest, WhatFitsStays) {
  const Loss of_numbers = losses::SparseCategoricalCrossentropy();
  for (const Metric& metric :
       {metrics::Accuracy(), metrics::SparseCategoricalAccuracy(),
        metrics::SparseTopKCategoricalAccuracy(), metrics::Perplexity(),
        metrics::Precision("precision", {.class_id = 1}), metrics::Auc("auc", {.class_id = 1})}) {
    EXPECT_TRUE(Traced(of_numbers, metric, kNumbers).ok()) << metric.name;
  }
  for (const Metric& metric :
       {metrics::Accuracy(), metrics::CategoricalAccuracy(), metrics::TopKCategoricalAccuracy(),
        metrics::BinaryAccuracy(), metrics::MeanSquaredError(), metrics::MeanAbsoluteError()}) {
    for (const Loss& loss : {losses::CategoricalCrossentropy(), losses::MeanSquaredError(),
                             losses::BinaryCrossentropy()}) {
      EXPECT_TRUE(Traced(loss, metric, kShares).ok()) << metric.name;
    }
  }
  for (const TensorType& labels : {TensorType{DType::kI32, {4}}, TensorType{DType::kF32, {4, 1}}}) {
    for (const Metric& metric :
         {metrics::Accuracy(), metrics::BinaryAccuracy(), metrics::MeanSquaredError(),
          metrics::MeanAbsoluteError(), metrics::Precision(), metrics::Auc()}) {
      for (const Loss& loss : {losses::BinaryCrossentropy(), losses::MeanAbsoluteError()}) {
        EXPECT_TRUE(Traced(loss, metric, labels, 1).ok()) << metric.name << labels.ToString();
      }
    }
  }
  // One's own takes what its loss does, unless it says otherwise.
  const Metric own{"own", [](const Value& y, const Value& p, const Loss&) {
                     return program::ReduceMean(p) +
                            program::ReduceMean(program::Cast(y, p.dtype()));
                   }};
  EXPECT_TRUE(Traced(of_numbers, own, kNumbers).ok());
}

// A loss of one's own whose labels are numbers, and that says nothing of classes.
class OfNumbers final : public LossFunction {
 public:
  std::string_view name() const override { return "own"; }
  Value PerExample(const Value&, const Value& p) const override {
    return program::ReduceMean(p, {-1});
  }
  std::vector<program::Dims> LabelDims(const TensorType& p) const override { return {{p.dims[0]}}; }
};

TEST(MetricLabelsTest, ExamplesThatArePositiveAreThoseOfTheirLabels) {
  const Loss own{std::make_shared<OfNumbers>()};
  EXPECT_EQ(Traced(own, metrics::Precision(), kNumbers),
            InvalidArgument("precision: expected labels i32[4,4] beside predictions f32[4,4], got: "
                            "labels i32[4]"));
}

}  // namespace
}  // namespace meshtrain::train
