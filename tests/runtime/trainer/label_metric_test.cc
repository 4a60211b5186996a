#include "runtime/trainer/label_metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/train/loss.h"

namespace meshtrain::trainer {
namespace {

using execute::DTensor;
using execute::Function;
using execute::Outputs;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using program::Value;

class LabelMetricTest : public ::testing::Test {
 protected:
  LabelMetricTest() {
    mesh_ = Mesh::Create({{"batch", 2}}, {}).value();
    session_ = execute::Session::Create({.threads = 1}).value();
  }
  // Predictions of two classes, each the class `says`, and their labels; split over the batch.
  Status Step(Function& step, const std::vector<int32_t>& labels, const std::vector<int>& says) {
    const auto n = static_cast<int64_t>(labels.size());
    std::vector<float> logits;
    for (const int said : says) {
      logits.push_back(said == 0 ? 1.0f : -1.0f);
      logits.push_back(said == 0 ? -1.0f : 1.0f);
    }
    MT_ASSIGN_OR_RETURN(const DTensor y, OnMesh(Tensor::Of<int32_t>({n}, labels)));
    MT_ASSIGN_OR_RETURN(const DTensor p, OnMesh(Tensor::Of<float>({n, 2}, logits)));
    return step(y, p).status();
  }
  Result<DTensor> OnMesh(const Tensor& x) {
    const Layout split = Layout::BatchSharded(mesh_, "batch", x.type().rank()).value();
    return execute::RepackLocalTensor(*session_, x, split, execute::Uneven::kAllow);
  }
  Mesh mesh_;
  std::unique_ptr<execute::Session> session_;
};

TEST_F(LabelMetricTest, CountsEveryExampleOnceWhateverItsBatch) {
  const train::Loss loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});
  const auto accuracy =
      LabelMetric::Create(*session_, mesh_, train::metrics::Accuracy(), loss).value();
  Function step(*session_, "step", {"y", "p"}, [&](const Value& y, const Value& p) -> Outputs {
    accuracy.Update(y, p);
    return {};
  });
  EXPECT_TRUE(std::isnan(accuracy.Result().value()));
  ASSERT_TRUE(Step(step, {0, 1, 0, 1}, {0, 1, 0, 0}).ok());  // 3 of 4
  ASSERT_TRUE(Step(step, {1, 1, 1}, {0, 0, 0}).ok());        // 0 of 3, in unequal shards
  EXPECT_DOUBLE_EQ(accuracy.Result().value(), 3.0 / 7);
  ASSERT_TRUE(accuracy.Reset().ok());
  ASSERT_TRUE(Step(step, {1, 1}, {1, 1}).ok());
  EXPECT_DOUBLE_EQ(accuracy.Result().value(), 1);
}

TEST_F(LabelMetricTest, AddsUpSumsOfEveryExample) {
  const train::Loss loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});
  const auto recall =
      LabelMetric::Create(*session_, mesh_, train::metrics::Recall("it", {.class_id = 1}), loss)
          .value();
  const auto perplexity =
      LabelMetric::Create(*session_, mesh_, train::metrics::Perplexity(), loss).value();
  Function step(*session_, "step", {"y", "p"}, [&](const Value& y, const Value& p) -> Outputs {
    recall.Update(y, p);
    perplexity.Update(y, p);
    return {};
  });
  EXPECT_TRUE(std::isnan(recall.Result().value()));
  ASSERT_TRUE(Step(step, {0, 1, 0, 1}, {0, 1, 1, 0}).ok());  // 1 of 2
  ASSERT_TRUE(Step(step, {1, 1, 1}, {1, 1, 0}).ok());        // 2 of 3, in unequal shards
  EXPECT_EQ(recall.Result().value(), 3.0 / 5);
  // Four are right, by two to one in logits; three are wrong.
  const double right = std::log(1 + std::exp(-2.0)), wrong = std::log(1 + std::exp(2.0));
  EXPECT_NEAR(perplexity.Result().value(), std::exp((4 * right + 3 * wrong) / 7), 1e-6);
  ASSERT_TRUE(recall.Reset().ok());
  EXPECT_TRUE(std::isnan(recall.Result().value()));
  ASSERT_TRUE(Step(step, {1, 1}, {1, 1}).ok());
  EXPECT_EQ(recall.Result().value(), 1);
}

TEST_F(LabelMetricTest, LabelsThatDoNotFitAreAnErrorOfTheTrace) {
  const train::Loss loss = train::losses::CategoricalCrossentropy({.from_logits = true});
  const auto accuracy =
      LabelMetric::Create(*session_, mesh_, train::metrics::Accuracy("share"), loss).value();
  Function step(*session_, "step", {"y", "p"}, [&](const Value& y, const Value& p) -> Outputs {
    accuracy.Update(y, p);
    return {};
  });
  EXPECT_THAT(Step(step, {0, 1}, {0, 1}).message(), ::testing::HasSubstr("share: categorical_"));
  EXPECT_FALSE(LabelMetric::Create(*session_, mesh_, {}, loss).ok());
  // As many examples as classes: as a place in the batch a label would be compared with classes.
  const auto other =
      LabelMetric::Create(*session_, mesh_, train::metrics::CategoricalAccuracy("other"),
                          train::losses::SparseCategoricalCrossentropy({.from_logits = true}))
          .value();
  Function both(*session_, "both", {"y", "p"}, [&](const Value& y, const Value& p) -> Outputs {
    other.Update(y, p);
    return {};
  });
  EXPECT_EQ(Step(both, {0, 1}, {0, 1}).message(),
            "other: expected labels i32[2,2] beside predictions f32[2,2], got: labels i32[2]");
}

}  // namespace
}  // namespace meshtrain::trainer
