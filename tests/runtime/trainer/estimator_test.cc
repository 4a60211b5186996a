// LinearRegressor against closed forms.
#include "runtime/trainer/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>

#include "runtime/strategy/dataset.h"
#include "tests/runtime/strategy/strategy_testing.h"

namespace meshtrain::trainer {
namespace {

using mesh::Tensor;
using ::testing::HasSubstr;

std::unique_ptr<train::Optimizer> Sgd(double learning_rate) {
  return train::Sgd({.common = {.learning_rate = learning_rate}});
}

// The guide's: {"feats": [1.]}, [1.], a thousand times, in batches of 10.
InputFn OneIsOne() {
  return []() -> Result<Examples> {
    const Tensor ones = strategy::Floats({1000, 1}, std::vector<float>(1000, 1));
    MT_ASSIGN_OR_RETURN(auto pipeline, strategy::ArraysPipeline({ones, ones}, 10));
    return Examples{{"feats"}, std::move(pipeline)};
  };
}

class EstimatorTest : public ::testing::TestWithParam<strategy::StrategyCase> {};
INSTANTIATE_TEST_SUITE_P(Strategies, EstimatorTest,
                         ::testing::ValuesIn(strategy::ModelStrategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EstimatorTest, TrainsAndEvaluatesTheGuidesExample) {
  strategy::ForStrategy(GetParam(), [](strategy::Strategy& strategy) -> Status {
    constexpr double kRate = 0.01;
    LinearRegressor regressor({{"feats"}}, Sgd(kRate),
                              {.train_distribute = &strategy, .eval_distribute = &strategy});
    MT_RETURN_IF_ERROR(regressor.Train(OneIsOne(), 10));
    MT_ASSIGN_OR_RETURN(const Evaluation e, regressor.Evaluate(OneIsOne(), 10));
    // w = b from zero, prediction p = w + b: p - 1 shrinks by (1 - 4 * rate) in each step.
    const double miss = std::pow(1 - 4 * kRate, 10);
    MT_WANT(e.global_step == 10);
    MT_WANT(std::abs(e.average_loss - miss * miss) <= 1e-6);
    MT_WANT(std::abs(e.loss - miss * miss) <= 1e-6);
    MT_WANT(e.label_mean == 1);
    MT_WANT(std::abs(e.prediction_mean - (1 - miss)) <= 1e-6);
    // More steps go on from there.
    MT_RETURN_IF_ERROR(regressor.Train(OneIsOne(), 40));
    MT_ASSIGN_OR_RETURN(const Evaluation later, regressor.Evaluate(OneIsOne(), 1));
    MT_WANT(later.global_step == 50);
    MT_WANT(std::abs(later.prediction_mean - (1 - std::pow(1 - 4 * kRate, 50))) <= 1e-6);
    MT_WANT(later.ByName().size() == 5 && later.ByName().at("global_step") == 50);
    return OkStatus();
  });
}

// y = 2 a + b0 - 3 b1 + 0.5, and least squares finds it.
InputFn Planted(int64_t n, int64_t batch) {
  return [=]() -> Result<Examples> {
    Tensor a(mesh::TensorType{mesh::DType::kF32, {n}}),
        b(mesh::TensorType{mesh::DType::kF32, {n, 2}});
    Tensor unused(mesh::TensorType{mesh::DType::kF32, {n}}),
        y(mesh::TensorType{mesh::DType::kF32, {n}});
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const auto t = static_cast<float>(i);
      a.mutable_values<float>()[i] = std::sin(t);
      b.mutable_values<float>()[2 * i] = std::cos(2 * t);
      b.mutable_values<float>()[2 * i + 1] = std::sin(3 * t);
      unused.mutable_values<float>()[i] = t;
      y.mutable_values<float>()[i] = 2 * std::sin(t) + std::cos(2 * t) - 3 * std::sin(3 * t) + 0.5f;
    }
    MT_ASSIGN_OR_RETURN(auto pipeline, strategy::ArraysPipeline({unused, b, a, y}, batch));
    return Examples{{"unused", "b", "a"}, std::move(pipeline)};
  };
}

TEST(EstimatorOnceTest, FindsThePlantedWeightsByColumn) {
  const auto mirrored = strategy::Strategy::Mirrored({.count = 2}).value();
  LinearRegressor regressor({{"a"}, {"b", 2}}, Sgd(0.2), {.train_distribute = mirrored.get()});
  ASSERT_TRUE(regressor.Train(Planted(50, 10), 600).ok());
  const std::vector<nn::Parameter>& p = regressor.parameters();
  ASSERT_EQ(p.size(), 3u);
  EXPECT_EQ(p[0].name(), "linear_model.a.weights");
  EXPECT_EQ(p[1].name(), "linear_model.b.weights");
  EXPECT_EQ(p[2].name(), "linear_model.bias_weights");
  EXPECT_NEAR(mirrored->Read(p[0]).value().Item(), 2, 1e-3);
  EXPECT_NEAR(strategy::FloatsOf(mirrored->Read(p[1]).value())[0], 1, 1e-3);
  EXPECT_NEAR(strategy::FloatsOf(mirrored->Read(p[1]).value())[1], -3, 1e-3);
  EXPECT_NEAR(mirrored->Read(p[2]).value().Item(), 0.5, 1e-3);
  // Evaluated under another strategy, with weights copied there.
  const Evaluation e = regressor.Evaluate(Planted(50, 10)).value();
  EXPECT_LT(e.average_loss, 1e-5);
  EXPECT_NEAR(e.prediction_mean, e.label_mean, 1e-3);
}

TEST(EstimatorOnceTest, BatchesArePerReplicaAndEveryFigureIsAMeanOverExamples) {
  // Before any training predictions are 0: losses are means of y^2. Labels 1 .. 7 in batches of 4:
  // 4 and 3 examples.
  const InputFn input = []() -> Result<Examples> {
    const Tensor y = strategy::Floats({7}, {1, 2, 3, 4, 5, 6, 7});
    MT_ASSIGN_OR_RETURN(auto pipeline, strategy::ArraysPipeline({y, y}, 4));
    return Examples{{"y"}, std::move(pipeline)};
  };
  const auto one = strategy::Strategy::OneDevice("cpu:0").value(),
             two = strategy::Strategy::Mirrored({.count = 2}).value();
  LinearRegressor alone({{"y"}}, Sgd(0.1),
                        {.train_distribute = one.get(), .eval_distribute = one.get()});
  const Evaluation a = alone.Evaluate(input).value();
  EXPECT_DOUBLE_EQ(a.average_loss, 140.0 / 7);
  EXPECT_DOUBLE_EQ(a.loss, 140.0 / 7);  // the batches' means are 7.5 and 36.7, and theirs 22.1
  EXPECT_DOUBLE_EQ(a.label_mean, 4);
  EXPECT_EQ(a.prediction_mean, 0);
  EXPECT_EQ(a.global_step, 0);
  // Two replicas take both batches in one step.
  LinearRegressor both({{"y"}}, Sgd(0.1),
                       {.train_distribute = two.get(), .eval_distribute = two.get()});
  const Evaluation b = both.Evaluate(input).value();
  EXPECT_DOUBLE_EQ(b.average_loss, 140.0 / 7);
  EXPECT_DOUBLE_EQ(b.loss, 140.0 / 7);
  // The pass is over before each of three has a batch.
  const auto three = strategy::Strategy::Mirrored({.count = 3}).value();
  LinearRegressor few({{"y"}}, Sgd(0.1),
                      {.train_distribute = three.get(), .eval_distribute = three.get()});
  EXPECT_DOUBLE_EQ(few.Evaluate(input).value().average_loss, 140.0 / 7);
}

TEST(EstimatorOnceTest, GoesOnFromItsModelDir) {
  std::string folder = (std::filesystem::temp_directory_path() / "estimator-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  constexpr double kRate = 0.01;
  for (int run = 1; run <= 3; ++run) {
    const auto strategy = strategy::Strategy::Mirrored({.count = run}).value();
    LinearRegressor regressor({{"feats"}}, Sgd(kRate),
                              {.train_distribute = strategy.get(),
                               .eval_distribute = strategy.get(),
                               .model_dir = folder});
    // What there is before any training of its own.
    const Evaluation before = regressor.Evaluate(OneIsOne(), 1).value();
    EXPECT_EQ(before.global_step, 5 * (run - 1));
    EXPECT_NEAR(before.prediction_mean, 1 - std::pow(1 - 4 * kRate, 5 * (run - 1)), 1e-6);
    ASSERT_TRUE(regressor.Train(OneIsOne(), 5).ok());
    EXPECT_EQ(regressor.global_step(), 5 * run);
    EXPECT_NEAR(regressor.Evaluate(OneIsOne(), 1).value().prediction_mean,
                1 - std::pow(1 - 4 * kRate, 5 * run), 1e-6);
    const auto other = strategy::Strategy::OneDevice("cpu:0").value();
    LinearRegressor elsewhere({{"feats"}}, Sgd(kRate),
                              {.eval_distribute = other.get(), .model_dir = folder});
    EXPECT_EQ(elsewhere.Evaluate(OneIsOne(), 1).value().global_step, 5 * run);
    // Training that did not begin leaves no weights to evaluate but the saved ones.
    LinearRegressor failing({{"feats"}}, Sgd(kRate),
                            {.eval_distribute = other.get(), .model_dir = folder});
    EXPECT_FALSE(
        failing.Train([]() -> Result<Examples> { return NotFound("no such file"); }, 1).ok());
    const Evaluation saved = failing.Evaluate(OneIsOne(), 1).value();
    EXPECT_EQ(saved.global_step, 5 * run);
    EXPECT_NEAR(saved.prediction_mean, 1 - std::pow(1 - 4 * kRate, 5 * run), 1e-6);
  }
  std::filesystem::remove_all(folder);
}

TEST(EstimatorOnceTest, SaysWhatTheInputLacks) {
  const auto s = strategy::Strategy::OneDevice("cpu:0").value();
  const RunConfig config{.train_distribute = s.get(), .eval_distribute = s.get()};
  EXPECT_THAT(LinearRegressor({{"other"}}, Sgd(0.1), config).Train(OneIsOne(), 1).message(),
              HasSubstr("`other`"));
  EXPECT_THAT(LinearRegressor({{"feats", 3}}, Sgd(0.1), config).Train(OneIsOne(), 1).message(),
              HasSubstr("feature `feats`: expected f32[N,3], got: f32[10,1]"));
  EXPECT_EQ(LinearRegressor({}, Sgd(0.1), config).Train(OneIsOne(), 1).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(LinearRegressor({{"feats"}}, Sgd(0.1), config).Train(OneIsOne(), 0).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(LinearRegressor({{"feats"}}, Sgd(0.1), config).Evaluate(OneIsOne(), 0).status().code(),
            StatusCode::kInvalidArgument);
  const InputFn fails = []() -> Result<Examples> { return NotFound("no such file"); };
  EXPECT_EQ(LinearRegressor({{"feats"}}, Sgd(0.1), config).Train(fails, 1).code(),
            StatusCode::kNotFound);
  EXPECT_EQ(LinearRegressor({{"feats"}}, Sgd(1e30), config).Train(OneIsOne(), 9).code(),
            StatusCode::kAborted);
}

}  // namespace
}  // namespace meshtrain::trainer
