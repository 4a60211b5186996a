// Metrics of a manifest beside its loss.
#include <gtest/gtest.h>

#include <string>

#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using mesh::DType;
using mesh::TensorType;

// Of a model of four classes on four examples.
Status Traced(const std::string& loss, const std::string& metrics, const TensorType& labels) {
  const std::string text =
      "data: {train: {idx: {images: a, labels: b}}, batch: 4}\n"
      "model:\n"
      "  - dense: {units: 4}\n"
      "loss: " +
      loss +
      "\noptimizer: sgd\n"
      "metrics: " +
      metrics + "\n";
  MT_ASSIGN_OR_RETURN(const manifest::Manifest read, ParseManifest(text, "job.yaml"));
  return Build(read.program, {TensorType{DType::kF32, {4, 5}}, labels}).status();
}

TEST(MetricsTest, AMetricThatDoesNotFitTheLabelsIsRefusedAtItsLine) {
  EXPECT_EQ(Traced("sparse_categorical_crossentropy", "[accuracy, categorical_accuracy]",
                   {DType::kI32, {4}})
                .message(),
            "job.yaml:6:21: program.metrics[1]: categorical_accuracy: expected labels i32[4,4] "
            "beside predictions f32[4,4], got: labels i32[4]");
  EXPECT_EQ(
      Traced("{categorical_crossentropy: {}}",
             "[{sparse_top_k_categorical_accuracy: {k: 2, name: best}}]", {DType::kF32, {4, 4}})
          .message(),
      "job.yaml:6:12: program.metrics[0]: best: expected labels f32[4] beside predictions "
      "f32[4,4], got: labels f32[4,4]");
}

TEST(MetricsTest, AClassIsLookedForBesideEveryLossOfClasses) {
  const std::string metrics =
      "[accuracy, perplexity, precision: {class: 1}, recall: {class: 1, threshold: 0.25}, auc: "
      "{class: 1}, pr_auc: {class: 3}]";
  for (const char* how : {"{}", "{from_logits: true}"}) {
    const auto loss = [&](const char* name) { return std::string("{") + name + ": " + how + "}"; };
    EXPECT_EQ(Traced(loss("categorical_crossentropy"), metrics, {DType::kF32, {4, 4}}), OkStatus());
    EXPECT_EQ(Traced(loss("sparse_categorical_crossentropy"), metrics, {DType::kI32, {4}}),
              OkStatus());
  }
}

}  // namespace
}  // namespace meshtrain::recipe
