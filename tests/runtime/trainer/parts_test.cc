// Batches that are computed in parts (CompileOptions::accumulate), as every strategy runs them: the
// numbers of whole batches on one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::DType;
using mesh::Tensor;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kExamples = 22, kFeatures = 6;

// In f64, so that what is left of a difference is rounding.
std::vector<Tensor> F64Examples() {
  Tensor x(mesh::TensorType{DType::kF64, {kExamples, kFeatures}});
  Tensor y(mesh::TensorType{DType::kI32, {kExamples}});
  for (int64_t i = 0; i < kExamples * kFeatures; ++i) {
    x.mutable_values<double>()[static_cast<size_t>(i)] = std::sin(static_cast<double>(i * i));
  }
  for (int64_t i = 0; i < kExamples; ++i) {
    y.mutable_values<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i * i % 4);
  }
  return {x, y};
}

struct Fitted {
  std::vector<double> losses;  // of epochs, then of their validations
  Tensor kernel;
};

// Batches of 8, 8 and 6 examples.
Result<Fitted> FitInParts(strategy::Strategy& strategy, int64_t parts) {
  const auto layer =
      std::make_shared<nn::Sequential>(nn::Dense(8, {.name = "wide",
                                                     .activation = nn::ActivationKind::kTanh,
                                                     .kernel_regularizer = nn::L2(0.01)}),
                                       nn::Dense(4, {.name = "narrow"}));
  Model model(layer, strategy);
  MT_RETURN_IF_ERROR(model.Compile(
      {.loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true}),
       .optimizer = train::Adam({.common = {.learning_rate = 0.05, .global_clipnorm = 0.2}}),
       .accumulate = parts}));
  MT_ASSIGN_OR_RETURN(const auto data, strategy::ArraysPipeline(F64Examples(), 8));
  MT_ASSIGN_OR_RETURN(const auto validation, strategy::ArraysPipeline(F64Examples(), 8));
  MT_ASSIGN_OR_RETURN(const History history,
                      model.Fit(*data, {.epochs = 3, .validation = validation.get()}));
  Fitted out{.losses = history.Of("loss"), .kernel = {}};
  const std::vector<double> validated = history.Of("val_loss");
  out.losses.insert(out.losses.end(), validated.begin(), validated.end());
  MT_ASSIGN_OR_RETURN(out.kernel, strategy.Read(layer->parameters()[0]));
  return out;
}

Status Same(const Fitted& got, const Fitted& want) {
  MT_WANT(got.losses.size() == want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    MT_WANT(std::abs(got.losses[i] - want.losses[i]) < 1e-12);
  }
  const auto kernel = got.kernel.values<double>(), wanted = want.kernel.values<double>();
  MT_WANT(kernel.size() == wanted.size());
  for (size_t i = 0; i < kernel.size(); ++i) MT_WANT(std::abs(kernel[i] - wanted[i]) < 1e-11);
  return OkStatus();
}

class InPartsTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, InPartsTest, ::testing::ValuesIn(strategy::ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

// 2 and 3 divide only some of the batches, and replicas do not divide all parts.
TEST_P(InPartsTest, BatchesGiveTheNumbersOfWholeOnes) {
  const auto one = strategy::Strategy::OneDevice("cpu:0").value();
  const Fitted want = FitInParts(*one, 1).value();
  ASSERT_LT(want.losses[2], want.losses[0]);
  for (const int64_t parts : {2, 3}) {
    strategy::ForStrategy(GetParam(), [&](strategy::Strategy& strategy) -> Status {
      MT_ASSIGN_OR_RETURN(const Fitted got, FitInParts(strategy, parts));
      return Same(got, want).At(std::to_string(parts) + " parts");
    });
  }
}

TEST(InPartsMeshTest, OnEveryMesh) {
  const auto one = strategy::Strategy::OneDevice("cpu:0").value();
  const Fitted want = FitInParts(*one, 1).value();
  for (const char* text : {"", "batch=2,model=2", "model=4"}) {
    for (const bool isolated : {false, true}) {
      const mesh::Mesh mesh = mesh::Mesh::Parse(text).value();
      nn::LayoutMap layouts;
      if (mesh.FindAxis("model")) {
        ASSERT_TRUE(layouts.Add("wide.kernel", {mesh::UNSHARDED, "model"}).ok());
        ASSERT_TRUE(layouts.Add("wide.bias", {"model"}).ok());
        ASSERT_TRUE(layouts.Add("narrow.kernel", {"model", mesh::UNSHARDED}).ok());
      }
      // Weights begin as on one device, whose seed is 0.
      const auto strategy =
          strategy::Strategy::Mesh(
              {.mesh = mesh, .layouts = std::move(layouts), .common = {.isolated = isolated}})
              .value();
      const auto got = FitInParts(*strategy, 4);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      const Status same = Same(*got, want);
      EXPECT_TRUE(same.ok()) << text << isolated << ": " << same.message();
    }
  }
}

// A part that is not finite spoils the step, and no part of it stays: not the averages that an
// earlier part has moved either.
TEST(InPartsMeshTest, APartThatIsNotFiniteChangesNothing) {
  std::vector<double> labels(kExamples, 1);
  // Of the first batch of 8, example 3: in the second of two parts.
  labels[3] = 1e200;  // whose square is infinite
  const Tensor y = Tensor::Of<double>({kExamples, 1}, labels);
  const std::vector<Tensor> data = {F64Examples()[0], y};
  const auto one = strategy::Strategy::OneDevice("cpu:0").value();
  const auto layer = std::make_shared<nn::Sequential>(nn::BatchNormalization(), nn::Dense(1));
  Model model(layer, *one);
  ASSERT_TRUE(model
                  .Compile({.loss = train::losses::MeanSquaredError(),
                            .optimizer = train::Sgd({.momentum = 0.9}),
                            .accumulate = 2})
                  .ok());
  const auto pipeline = strategy::ArraysPipeline(data, 8).value();
  const auto history = model.Fit(*pipeline, {.epochs = 1});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(history->end, train::FitEnd::kNotFinite);
  EXPECT_THAT(history->message, HasSubstr("step 1: "));
  EXPECT_THAT(history->message, HasSubstr("(part 2)"));
  for (const nn::Parameter& p : layer->parameters()) {
    if (!p.name().ends_with("moving_mean")) continue;
    const Tensor mean = one->Read(p).value();
    const auto values = mean.values<double>();
    EXPECT_THAT(std::vector<double>(values.begin(), values.end()),
                Pointwise(DoubleNear(0), std::vector<double>(kFeatures, 0)));
  }
}

TEST(InPartsMeshTest, ANumberOfPartsThatIsNoneIsRefused) {
  const auto one = strategy::Strategy::OneDevice("cpu:0").value();
  EXPECT_THAT(FitInParts(*one, 0).status().message(),
              HasSubstr("accumulate: expected a number of parts from 1 to 64, got: 0"));
}

}  // namespace
}  // namespace meshtrain::trainer
