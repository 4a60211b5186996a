// What one strategy saves another goes on from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "runtime/checkpoint/weights.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using ::testing::HasSubstr;

class SavingTest : public ::testing::Test {
 protected:
  const testing_folder::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

// A model with Adam (slots, a step count), in a custom loop over 12 examples in batches of 5, 5
// and 2.
class Loop {
 public:
  explicit Loop(ReplicaStrategy& strategy)
      : strategy_(strategy),
        scope_(strategy),
        model_(nn::Dense(6, {.activation = nn::ActivationKind::kTanh}), nn::Dense(1)),
        step_("step", [this](Value x, Value y) -> Value {
          const Value loss =
              ComputeAverageLoss(program::ReduceSum(program::Square(model_(x) - y), {1}));
          adam_->Minimize(loss, model_.parameters());
          return loss;
        }) {}

  Result<std::vector<double>> Pass() {
    Tensor x(mesh::TensorType{DType::kF32, {12, 3}}), y(mesh::TensorType{DType::kF32, {12, 1}});
    for (size_t i = 0; i < 36; ++i) x.mutable_values<float>()[i] = std::cos(static_cast<float>(i));
    for (size_t i = 0; i < 12; ++i) y.mutable_values<float>()[i] = std::sin(static_cast<float>(i));
    MT_ASSIGN_OR_RETURN(DistributedDataset data, strategy_.DistributeArrays({x, y}, 5));
    std::vector<double> out;
    DistributedIterator pass = data.Iterate();
    for (;;) {
      MT_ASSIGN_OR_RETURN(const auto batch, pass.Next());
      if (!batch) return out;
      MT_ASSIGN_OR_RETURN(const auto losses, strategy_.Run(step_, *batch));
      MT_ASSIGN_OR_RETURN(const Tensor loss, strategy_.Reduce(ReduceOp::kSum, losses[0]));
      out.push_back(loss.Item());
    }
  }
  const std::vector<nn::Parameter>& parameters() const { return model_.parameters(); }

 private:
  ReplicaStrategy& strategy_;
  StrategyScope scope_;
  nn::Sequential model_;
  std::unique_ptr<train::Optimizer> adam_ = train::Adam({.common = {.learning_rate = 0.02}});
  ReplicaFunction step_;
};

TEST_F(SavingTest, SavedUnderMirroredResumedUnderEveryStrategy) {
  const auto straight = Strategy::OneDevice("cpu:0").value();
  std::vector<double> want;
  {
    Loop loop(*straight);
    for (int pass = 0; pass < 4; ++pass) {
      const std::vector<double> losses = loop.Pass().value();
      want.insert(want.end(), losses.begin(), losses.end());
    }
  }
  {
    const auto mirrored = Strategy::Mirrored({.count = 2}).value();
    Loop loop(*mirrored);
    for (int pass = 0; pass < 2; ++pass) ASSERT_TRUE(loop.Pass().ok());
    const auto saved = mirrored->Save(folder_, 6);
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_EQ(*saved, folder_ + "/ckpt-00000006");
  }
  for (const StrategyCase& c : AllStrategies()) {
    SCOPED_TRACE(c.name);
    ForReplicas(c, [&](ReplicaStrategy& strategy) -> Status {
      Loop loop(strategy);
      MT_ASSIGN_OR_RETURN(const int64_t step,
                          strategy.Restore(folder_));  // before there is a weight
      MT_WANT(step == 6);
      for (int pass = 2; pass < 4; ++pass) {
        MT_ASSIGN_OR_RETURN(const std::vector<double> losses, loop.Pass());
        for (size_t i = 0; i < 3; ++i) {
          MT_WANT(std::abs(losses[i] - want[static_cast<size_t>(pass) * 3 + i]) <= 1e-6);
        }
      }
      // And once more, over what is there.
      MT_RETURN_IF_ERROR(strategy.Restore(folder_).status());
      MT_ASSIGN_OR_RETURN(const std::vector<double> again, loop.Pass());
      for (size_t i = 0; i < 3; ++i) MT_WANT(std::abs(again[i] - want[6 + i]) <= 1e-6);
      return OkStatus();
    });
  }
}

TEST_F(SavingTest, WeightsAreFoundByTheirPaths) {
  const auto mirrored = Strategy::Mirrored({.count = 2}).value();
  Loop loop(*mirrored);
  ASSERT_TRUE(loop.Pass().ok());
  ASSERT_TRUE(mirrored->Save(folder_, 3).ok());
  // As a manifest's `initial_weights` reads them.
  const std::vector<mesh::NamedType> names = {{"dense.kernel", {DType::kF32, {3, 6}}},
                                              {"dense_1.bias", {DType::kF32, {1}}}};
  const auto weights = checkpoint::LoadWeights(folder_, names);
  ASSERT_TRUE(weights.ok()) << weights.status().ToString();
  EXPECT_EQ(FloatsOf((*weights)[0]), FloatsOf(mirrored->Read(loop.parameters()[0]).value()));
}

TEST_F(SavingTest, AModelGoesOnUnderAnotherStrategy) {
  const auto fit = [](trainer::Model& model, int64_t epochs) {
    Tensor x(mesh::TensorType{DType::kF32, {9, 2}}), y(mesh::TensorType{DType::kF32, {9, 1}});
    for (size_t i = 0; i < 18; ++i) x.mutable_values<float>()[i] = std::cos(static_cast<float>(i));
    for (size_t i = 0; i < 9; ++i) y.mutable_values<float>()[i] = std::sin(static_cast<float>(i));
    return model.Fit(trainer::Arrays{x, y, 4}, {.epochs = epochs});
  };
  const auto make = [](Strategy& strategy) {
    auto model = std::make_unique<trainer::Model>(
        std::make_shared<nn::Sequential>(nn::Dense(3), nn::Dense(1)), strategy);
    EXPECT_TRUE(
        model->Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Adam()})
            .ok());
    return model;
  };
  const auto one = Strategy::OneDevice("cpu:0").value();
  const auto straight = make(*one);
  const std::vector<double> want = fit(*straight, 4).value().Of("loss");
  {
    const auto mirrored = Strategy::Mirrored({.count = 3}).value();
    const auto model = make(*mirrored);
    ASSERT_TRUE(fit(*model, 2).ok());
    const auto saved = model->Save(folder_);
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_EQ(*saved, folder_ + "/ckpt-00000006");
    // Compiled anew, with slots of the same paths: the old ones are done and not in the way.
    ASSERT_TRUE(
        model->Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Adam()})
            .ok());
    ASSERT_TRUE(fit(*model, 1).ok());
    const auto other = mirrored->Save(folder_ + "/other", 1);
    EXPECT_TRUE(other.ok()) << other.status().ToString();
  }
  const auto central = Strategy::CentralStorage({.count = 2}).value();
  const auto model = make(*central);
  ASSERT_TRUE(model->Restore(folder_).ok());
  EXPECT_EQ(model->steps(), 6);
  const std::vector<double> got = fit(*model, 2).value().Of("loss");
  EXPECT_NEAR(got[0], want[2], 1e-6);
  EXPECT_NEAR(got[1], want[3], 1e-6);
}

TEST_F(SavingTest, ADamagedCheckpointIsPassedOver) {
  const auto strategy = Strategy::Mirrored({.count = 2}).value();
  const auto scope = strategy->Scope();
  const nn::Parameter v("v", {DType::kF32, {4}}, nn::Initializer::Ones());
  ASSERT_TRUE(strategy->Assign(v, Floats({4}, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(strategy->Save(folder_, 1).ok());
  ASSERT_TRUE(strategy->Assign(v, Floats({4}, {5, 6, 7, 8})).ok());
  const std::string newest = strategy->Save(folder_, 2).value();
  for (const auto& file : std::filesystem::directory_iterator(newest)) {
    if (file.path().extension() != ".safetensors") continue;
    std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(-1, std::ios::end);
    f.put('!');
  }
  EXPECT_EQ(strategy->Restore(folder_).value(), 1);
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(SavingTest, Refusals) {
  const auto strategy = Strategy::Default().value();
  const auto scope = strategy->Scope();
  EXPECT_EQ(strategy->Restore(folder_).status().code(), StatusCode::kNotFound);
  const nn::Parameter a("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  ASSERT_TRUE(strategy->Read(a).ok());
  ASSERT_TRUE(strategy->Save(folder_, 1).ok());
  const nn::Parameter b("v", {DType::kF32, {3}}, nn::Initializer::Ones());
  ASSERT_TRUE(strategy->Read(b).ok());
  EXPECT_THAT(strategy->Save(folder_, 2).status().message(), HasSubstr("got two: v"));
  EXPECT_THAT(strategy->Restore(folder_).status().message(),
              HasSubstr("`v`: expected f32[3], got: f32[2]"));
  // A variable that comes to be later is told as well.
  const auto later = Strategy::Default().value();
  const auto later_scope = later->Scope();
  ASSERT_TRUE(later->Restore(folder_).ok());
  const nn::Parameter c("v", {DType::kF32, {3}}, nn::Initializer::Ones());
  const ReplicaFunction read("read", [&]() -> Value { return c + 0.0; });
  EXPECT_THAT(later->Run(read).status().message(), HasSubstr("`v`: expected f32[3], got: f32[2]"));
}

}  // namespace
}  // namespace meshtrain::strategy
