// Model::Restore: whose values change, and what begins anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/strategy/strategy_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::trainer {
namespace {

using mesh::Tensor;
using strategy::Floats;
using strategy::FloatsOf;
using strategy::Strategy;

Arrays Six(int64_t batch) {
  return {Floats({6, 2}, {1, 2, 3, 1, 0, 1, 2, 2, 1, 1, 4, 0}), Floats({6, 1}, {1, 2, 3, 4, 5, 6}),
          batch};
}

std::shared_ptr<nn::Layer> Net(int64_t units = 1) {
  return std::make_shared<nn::Sequential>(nn::Dense(units));
}

CompileOptions Mse(std::shared_ptr<train::Optimizer> optimizer) {
  return {.loss = train::losses::MeanSquaredError(), .optimizer = std::move(optimizer)};
}
std::shared_ptr<train::Optimizer> Sgd(double learning_rate = 0.1) {
  return train::Sgd({.common = {.learning_rate = learning_rate}});
}
std::shared_ptr<train::Optimizer> Adam() { return train::Adam({.common = {.learning_rate = 0.1}}); }

Result<std::vector<float>> Predicted(Model& model) {
  MT_ASSIGN_OR_RETURN(const Tensor predicted, model.Predict(Six(3).x, 3));
  return FloatsOf(predicted);
}

// Each strategy of one process: replicas, meshes, parameter servers.
class RestoreTest : public ::testing::TestWithParam<strategy::StrategyCase> {
 protected:
  const testing_folder::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

std::vector<strategy::StrategyCase> OfOneProcess() {
  std::vector<strategy::StrategyCase> cases = strategy::ModelStrategies();
  std::erase_if(cases, [](const strategy::StrategyCase& c) { return c.processes != 1; });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Strategies, RestoreTest, ::testing::ValuesIn(OfOneProcess()),
                         [](const auto& info) { return info.param.name; });

TEST_P(RestoreTest, AnotherModelKeepsItsWeightsAndSlots) {
  strategy::ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    const bool servers = dynamic_cast<strategy::ServerStrategy*>(&strategy) != nullptr;
    // On the servers a path is one variable's.
    Model a(Net(), strategy),
        b(std::make_shared<nn::Sequential>(nn::Dense(1, {.name = servers ? "b" : ""})), strategy);
    MT_RETURN_IF_ERROR(a.Compile(Mse(Sgd())));
    MT_RETURN_IF_ERROR(b.Compile(Mse(train::Sgd({.momentum = 0.9}))));
    MT_RETURN_IF_ERROR(b.Fit(Six(3)).status());
    MT_RETURN_IF_ERROR(a.Fit(Six(3)).status());
    MT_RETURN_IF_ERROR(a.Save(folder_).status());
    MT_ASSIGN_OR_RETURN(const std::vector<float> saved, Predicted(a));
    MT_RETURN_IF_ERROR(a.Fit(Six(3)).status());
    MT_RETURN_IF_ERROR(b.Fit(Six(3), {.epochs = 2}).status());
    MT_ASSIGN_OR_RETURN(const std::vector<float> kept, Predicted(b));
    MT_RETURN_IF_ERROR(a.Restore(folder_));
    MT_WANT(a.steps() == 2);
    MT_WANT(Predicted(a).value() == saved);
    MT_WANT(Predicted(b).value() == kept);
    return OkStatus();
  });
}

TEST_P(RestoreTest, ANewOptimizerBeginsAnew) {
  strategy::ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    const auto one = Strategy::OneDevice("cpu:0").value();
    Model saved(Net(), *one);
    MT_RETURN_IF_ERROR(saved.Compile(Mse(Adam())));
    MT_RETURN_IF_ERROR(saved.Fit(Six(3), {.epochs = 5}).status());
    MT_RETURN_IF_ERROR(saved.Save(folder_).status());

    const auto iterations = [&](const train::Optimizer& optimizer) -> Result<double> {
      if (auto* servers = dynamic_cast<strategy::ServerStrategy*>(&strategy)) {
        MT_ASSIGN_OR_RETURN(const Tensor n, servers->coordinator().Read("optimizer.iterations"));
        return n.Item();
      }
      for (const nn::Parameter& slot : optimizer.slots()) {
        if (slot.name() != "optimizer.iterations") continue;
        MT_ASSIGN_OR_RETURN(const Tensor n, strategy.Read(slot));
        return n.Item();
      }
      return Internal("expected a slot");
    };
    Model model(Net(), strategy);
    const std::shared_ptr<train::Optimizer> p = Adam(), q = Adam(), r = Adam();
    MT_RETURN_IF_ERROR(model.Compile(Mse(p)));
    MT_RETURN_IF_ERROR(model.Restore(folder_));  // before there is a weight
    MT_RETURN_IF_ERROR(model.Fit(Six(3)).status());
    MT_WANT(model.steps() == 12);
    MT_WANT(iterations(*p).value() == 12);
    MT_RETURN_IF_ERROR(model.Compile(Mse(q)));
    MT_RETURN_IF_ERROR(model.Fit(Six(6)).status());
    MT_WANT(iterations(*q).value() == 1);
    // What is restored after it was compiled is for it.
    MT_RETURN_IF_ERROR(model.Compile(Mse(r)));
    MT_RETURN_IF_ERROR(model.Restore(folder_));
    MT_RETURN_IF_ERROR(model.Fit(Six(6)).status());
    MT_WANT(iterations(*r).value() == 11);
    return OkStatus();
  });
}

// The same of what the whole strategy restores.
TEST_P(RestoreTest, WhatTheStrategyRestoresIsTakenOnce) {
  strategy::ForStrategy(GetParam(), [&](Strategy& strategy) -> Status {
    Model model(Net(), strategy);
    const auto loss = [&](std::shared_ptr<train::Optimizer> optimizer) -> Result<double> {
      MT_RETURN_IF_ERROR(model.Compile(Mse(std::move(optimizer))));
      MT_ASSIGN_OR_RETURN(const History history, model.Fit(Six(3), {.epochs = 2}));
      return history.Of("loss").back();
    };
    const auto one = Strategy::OneDevice("cpu:0").value();
    Model saved(Net(), *one);
    MT_RETURN_IF_ERROR(saved.Compile(Mse(Adam())));
    MT_RETURN_IF_ERROR(saved.Fit(Six(3), {.epochs = 5}).status());
    MT_RETURN_IF_ERROR(saved.Save(folder_).status());
    MT_RETURN_IF_ERROR(strategy.Restore(folder_).status());
    MT_RETURN_IF_ERROR(loss(Adam()).status());
    MT_ASSIGN_OR_RETURN(const double got, loss(Adam()));
    // Without a checkpoint: goes on from those weights with a new optimizer.
    MT_RETURN_IF_ERROR(saved.Fit(Six(3), {.epochs = 2}).status());
    MT_RETURN_IF_ERROR(saved.Compile(Mse(Adam())));
    MT_ASSIGN_OR_RETURN(const History want, saved.Fit(Six(3), {.epochs = 2}));
    MT_WANT(std::abs(got - want.Of("loss").back()) <= 1e-6);
    return OkStatus();
  });
}

TEST(RestoredModelTest, AModelThatIsGoneIsInNobodysWay) {
  const testing_folder::TempFolder temp;
  const std::string& folder = temp.path();
  const auto strategy = Strategy::Default().value(), other = Strategy::Default().value();
  const auto kernel = [](Strategy& of, const Model& model) {
    return FloatsOf(of.Read(model.parameters()[0]).value());
  };
  {
    Model a(Net(), *strategy);
    ASSERT_TRUE(a.Compile(Mse(Sgd())).ok());
    ASSERT_TRUE(a.Fit(Six(3)).ok());
    ASSERT_TRUE(a.Save(folder).ok());
    ASSERT_TRUE(a.Restore(folder).ok());
  }
  const mesh::TensorType x = Six(3).x.type();
  Model b(Net(), *strategy), elsewhere(Net(), *other);
  ASSERT_TRUE(b.Build(x).ok());
  ASSERT_TRUE(elsewhere.Build(x).ok());
  EXPECT_EQ(kernel(*strategy, b), kernel(*other, elsewhere));
  const auto saved = strategy->Save(folder + "/other", 1);
  EXPECT_TRUE(saved.ok()) << saved.status().ToString();
  {
    Model wide(Net(3), *strategy);
    const Status built = wide.Build(x);
    EXPECT_TRUE(built.ok()) << built.ToString();
    // Another shape than the checkpoint's is told by the model that restores it.
    EXPECT_THAT(wide.Restore(folder).message(),
                ::testing::HasSubstr("`dense.kernel`: expected f32[2,3], got: f32[2,1]"));
  }
  // Nor is it when all variables take what was saved.
  EXPECT_EQ(strategy->Restore(folder).value(), 2);
  EXPECT_NE(kernel(*strategy, b), kernel(*other, elsewhere));
}

}  // namespace
}  // namespace meshtrain::trainer
