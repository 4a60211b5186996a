// Strategy::ParameterServer: Model and LinearRegressor over servers and workers behind real ports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>

#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/estimator.h"
#include "runtime/trainer/model.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/strategy/strategy_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::strategy {
namespace {

using mesh::DType;
using mesh::Tensor;
using parameter::TestCluster;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class ParameterServerStrategyTest : public ::testing::Test {
 protected:
  const testing_folder::TempFolder temp_;
  const std::string& folder_ = temp_.path();
};

// `steps_in_flight`: ParameterServerOptions'.
std::unique_ptr<ServerStrategy> Connect(const TestCluster& cluster, int64_t steps_in_flight = 1) {
  ParameterServerOptions options{.coordinator = cluster.options(),
                                 .steps_in_flight = steps_in_flight};
  options.coordinator.partitioner = parameter::FixedShards{2};
  auto strategy = Strategy::ParameterServer(std::move(options));
  EXPECT_TRUE(strategy.ok()) << strategy.status().ToString();
  return strategy.ok() ? std::move(*strategy) : nullptr;
}

Tensor Ones(int64_t n) { return Floats({n, 1}, std::vector<float>(static_cast<size_t>(n), 1)); }

// 9 examples in batches of 4, 4 and 1.
trainer::Arrays Waves() {
  Tensor x(mesh::TensorType{DType::kF32, {9, 2}}), y(mesh::TensorType{DType::kF32, {9, 1}});
  for (size_t i = 0; i < 18; ++i) x.mutable_values<float>()[i] = std::cos(static_cast<float>(i));
  for (size_t i = 0; i < 9; ++i) y.mutable_values<float>()[i] = std::sin(static_cast<float>(i));
  return {x, y, 4};
}
std::unique_ptr<trainer::Model> TwoLayers(Strategy& strategy) {
  return std::make_unique<trainer::Model>(
      std::make_shared<nn::Sequential>(nn::Dense(3), nn::Dense(1)), strategy);
}
std::unique_ptr<trainer::Model> DenseOne(Strategy& strategy, double w0 = 0) {
  return std::make_unique<trainer::Model>(
      std::make_shared<nn::Sequential>(
          nn::Dense(1, {.kernel_initializer = nn::Initializer::Constant(w0)})),
      strategy);
}
trainer::CompileOptions Mse(std::shared_ptr<train::Optimizer> optimizer) {
  return {.loss = train::losses::MeanSquaredError(), .optimizer = std::move(optimizer)};
}
std::shared_ptr<train::Optimizer> Sgd(double learning_rate) {
  return train::Sgd({.common = {.learning_rate = learning_rate}});
}
std::shared_ptr<train::Optimizer> Adam() {
  return train::Adam({.common = {.learning_rate = 0.05}});
}

std::vector<double> FitWaves(trainer::Model& model, int64_t epochs) {
  const auto history = model.Fit(Waves(), {.epochs = epochs});
  EXPECT_TRUE(history.ok()) << history.status().ToString();
  return history.ok() ? history->Of("loss") : std::vector<double>();
}

// With a step for each worker at once; whatever their order, no step is lost or done twice.
TEST_F(ParameterServerStrategyTest, ThreeWorkersTrainAtTheSameTime) {
  TestCluster cluster(2, 3);
  const auto strategy = Connect(cluster, 0);
  EXPECT_EQ(strategy->name(), "ParameterServerStrategy");
  EXPECT_EQ(strategy->num_replicas_in_sync(), 1);
  EXPECT_TRUE(strategy->chief());
  const auto model = DenseOne(*strategy, 0.2);
  ASSERT_TRUE(model->Compile(Mse(Sgd(0.05))).ok());
  const auto validation = ArraysPipeline({Ones(6), Ones(6)}, 4).value();
  const auto history =
      model->Fit(trainer::Arrays{Ones(70), Ones(70), 10},
                 {.epochs = 6, .steps_per_epoch = 20, .validation = validation.get()});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(model->steps(), 120);
  const std::vector<double> losses = history->Of("loss");
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_LT(losses[5], 1e-4);
  EXPECT_LT(losses[5], losses[0]);
  ASSERT_EQ(history->Of("val_loss").size(), 6u);
  EXPECT_LT(history->Of("val_loss")[5], 1e-4);
  const parameter::DispatcherStats stats = strategy->coordinator().stats();
  EXPECT_EQ(stats.steps_done, 120 + 6 * 2);  // two batches in each validation
  EXPECT_EQ(std::accumulate(stats.worker_steps.begin(), stats.worker_steps.end(), int64_t{0}),
            stats.steps_done);
  EXPECT_EQ(cluster.server(0).stats().pushes, 120);
}

// One worker: the figures of one device, with the data where it stood. Three: every step once.
TEST_F(ParameterServerStrategyTest, WorkersReadTheirOwnData) {
  const trainer::Arrays waves = Waves();
  const auto run = [&](Strategy& strategy) -> std::vector<double> {
    const auto model = TwoLayers(strategy);
    EXPECT_TRUE(model->Compile(Mse(Adam())).ok());
    const trainer::NamedData data{
        .name = "waves",
        .spec = {.source = {.from = data::MemoryArrays{{waves.x, waves.y}}},
                 .stages = {data::BatchStage{waves.batch_size}}}};
    const auto validation = ArraysPipeline({waves.x, waves.y}, 5).value();
    std::vector<double> losses;
    for (int i = 0; i < 2; ++i) {
      const auto history = model->Fit(data, {.epochs = 2, .validation = validation.get()});
      EXPECT_TRUE(history.ok()) << history.status().ToString();
      if (!history.ok()) return {};
      for (const char* name : {"loss", "val_loss"}) {
        for (const double loss : history->Of(name)) losses.push_back(loss);
      }
    }
    EXPECT_EQ(model->steps(), 12);
    return losses;
  };
  const auto one = Strategy::OneDevice("cpu:0").value();
  const std::vector<double> want = run(*one);
  ASSERT_EQ(want.size(), 8u);
  TestCluster cluster(2, 1);
  EXPECT_THAT(run(*Connect(cluster)), Pointwise(DoubleNear(1e-6), want));

  TestCluster three(2, 3);
  const auto strategy = Connect(three, 0);
  const auto model = DenseOne(*strategy, 0.2);
  ASSERT_TRUE(model->Compile(Mse(Sgd(0.05))).ok());
  const trainer::NamedData ones{
      .name = "ones",
      .spec = {.source = {.from = data::MemoryArrays{{Ones(70), Ones(70)}}},
               .stages = {data::BatchStage{10}}}};
  const auto history = model->Fit(ones, {.epochs = 6, .steps_per_epoch = 20});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_LT(history->Of("loss")[5], 1e-4);
  EXPECT_EQ(model->steps(), 120);
  EXPECT_EQ(three.server(0).stats().pushes, 120);
}

TEST_F(ParameterServerStrategyTest, PredictionsComeInTheOrderOfTheirExamples) {
  TestCluster cluster(2, 3);
  const auto strategy = Connect(cluster, 0);
  const auto model = DenseOne(*strategy, 2);
  std::vector<float> values(50);
  std::iota(values.begin(), values.end(), 0.0F);
  const auto predicted = model->Predict(Floats({50, 1}, values), 4);
  ASSERT_TRUE(predicted.ok()) << predicted.status().ToString();
  for (float& v : values) v *= 2;
  EXPECT_EQ(FloatsOf(*predicted), values);
}

// As on a mesh: another optimizer than the last begins with slots of its own, the same one goes on.
TEST_F(ParameterServerStrategyTest, CompiledAgainAsUnderOneDevice) {
  const auto run = [](Strategy& strategy) {
    const auto model = TwoLayers(strategy);
    std::vector<double> losses;
    const auto fit = [&](std::shared_ptr<train::Optimizer> optimizer) {
      EXPECT_TRUE(model->Compile(Mse(std::move(optimizer))).ok());
      for (const double loss : FitWaves(*model, 2)) losses.push_back(loss);
    };
    fit(Adam());
    const auto kept = Adam();
    fit(kept);
    fit(kept);
    fit(train::Adagrad());
    fit(Sgd(0.1));
    fit(Adam());
    return losses;
  };
  const auto one = Strategy::OneDevice("cpu:0").value();
  const std::vector<double> want = run(*one);
  ASSERT_EQ(want.size(), 12u);
  TestCluster cluster(2, 1);
  const auto strategy = Connect(cluster);
  EXPECT_THAT(run(*strategy), Pointwise(DoubleNear(1e-6), want));
}

TEST_F(ParameterServerStrategyTest, SavedHereAndResumedElsewhereAndBack) {
  const auto one = Strategy::OneDevice("cpu:0").value();
  const auto straight = TwoLayers(*one);
  ASSERT_TRUE(straight->Compile(Mse(Adam())).ok());
  const std::vector<double> want = FitWaves(*straight, 6);
  ASSERT_EQ(want.size(), 6u);
  const auto expect = [&](trainer::Model& model, size_t begin) {
    const std::vector<double> got = FitWaves(model, 2);
    EXPECT_THAT(got, Pointwise(DoubleNear(1e-6), std::vector<double>(want.begin() + begin,
                                                                     want.begin() + begin + 2)));
  };
  {
    TestCluster cluster(2, 1, folder_ + "/logs");
    const auto strategy = Connect(cluster);
    const auto model = TwoLayers(*strategy);
    ASSERT_TRUE(model->Compile(Mse(Adam())).ok());
    expect(*model, 0);
    const auto saved = model->Save(folder_ + "/ckpt");
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_EQ(*saved, folder_ + "/ckpt/ckpt-00000006");
    strategy->coordinator().End();
  }
  {
    const auto mirrored = Strategy::Mirrored({.count = 2}).value();
    const auto model = TwoLayers(*mirrored);
    ASSERT_TRUE(model->Compile(Mse(Adam())).ok());
    ASSERT_TRUE(model->Restore(folder_ + "/ckpt").ok());
    EXPECT_EQ(model->steps(), 6);
    expect(*model, 2);
    ASSERT_TRUE(model->Save(folder_ + "/ckpt").ok());
  }
  TestCluster cluster(3, 1);
  const auto strategy = Connect(cluster);
  const auto model = TwoLayers(*strategy);
  ASSERT_TRUE(model->Compile(Mse(Adam())).ok());
  const Status restored = model->Restore(folder_ + "/ckpt");  // before there is a weight
  ASSERT_TRUE(restored.ok()) << restored.ToString();
  EXPECT_EQ(model->steps(), 12);
  expect(*model, 4);
  // And once more, over what is there.
  ASSERT_TRUE(model->Restore(folder_ + "/ckpt").ok());
  expect(*model, 4);
}

TEST_F(ParameterServerStrategyTest, ADamagedCheckpointIsPassedOverAndAnotherTypeRefused) {
  TestCluster cluster(2, 1);
  const auto strategy = Connect(cluster);
  const auto scope = strategy->Scope();
  EXPECT_EQ(strategy->Restore(folder_).status().code(), StatusCode::kNotFound);
  const nn::Parameter v("v", {DType::kF32, {4}}, nn::Initializer::Ones());
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 1, 1, 1}));
  ASSERT_TRUE(strategy->Assign(v, Floats({4}, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(strategy->Save(folder_, 1).ok());
  ASSERT_TRUE(strategy->Assign(v, Floats({4}, {5, 6, 7, 8})).ok());
  const std::string newest = strategy->Save(folder_, 2).value();
  const auto damage = [](const std::string& checkpoint) {
    for (const auto& file : std::filesystem::directory_iterator(checkpoint)) {
      if (file.path().extension() != ".safetensors") continue;
      std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(-1, std::ios::end);
      f.put('!');
    }
  };
  damage(newest);
  EXPECT_EQ(strategy->Restore(folder_).value(), 1);
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{1, 2, 3, 4}));

  // Where none is whole, nothing changes.
  ASSERT_TRUE(strategy->Assign(v, Floats({4}, {9, 9, 9, 9})).ok());
  damage(folder_ + "/ckpt-00000001");
  EXPECT_EQ(strategy->Restore(folder_).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{9, 9, 9, 9}));

  const auto other = Strategy::OneDevice("cpu:0").value();
  const auto other_scope = other->Scope();
  const nn::Parameter longer("v", {DType::kF32, {5}}, nn::Initializer::Ones());
  ASSERT_TRUE(other->Read(longer).ok());
  ASSERT_TRUE(other->Save(folder_ + "/longer", 1).ok());
  const Status refused = strategy->Restore(folder_ + "/longer").status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("`v`: expected f32[4], got: f32[5]"));
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{9, 9, 9, 9}));
}

TEST_F(ParameterServerStrategyTest, VariablesAreOfOneScopeAndOnePath) {
  TestCluster cluster(1, 1);
  const auto strategy = Connect(cluster);
  const nn::Parameter outside("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  EXPECT_EQ(strategy->Read(outside).status().code(), StatusCode::kFailedPrecondition);
  const auto scope = strategy->Scope();
  const nn::Parameter v("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  EXPECT_THAT(strategy->Assign(v, Ones(2)).message(), HasSubstr("expected f32[2], got: f32[2,1]"));
  ASSERT_TRUE(strategy->Assign(v, Floats({2}, {3, 4})).ok());  // before it is on the servers
  EXPECT_EQ(FloatsOf(strategy->Read(v).value()), (std::vector<float>{3, 4}));
  const nn::Parameter second("v", {DType::kF32, {2}}, nn::Initializer::Ones());
  EXPECT_EQ(strategy->Read(second).status().code(), StatusCode::kAlreadyExists);
}

// Counts the steps it sees, and asks to stop after so many.
class StopAfter final : public train::Callback {
 public:
  StopAfter(int64_t steps, std::stop_source* source) : left_(steps), source_(source) {}
  Status OnStepEnd(const train::StepInfo&) override {
    if (--left_ == 0 && source_ != nullptr) source_->request_stop();
    return OkStatus();
  }
  std::optional<std::string> WantsStop() const override {
    if (left_ > 0 || source_ != nullptr) return std::nullopt;
    return "it has seen enough";
  }

 private:
  int64_t left_;
  std::stop_source* source_;
};

// Steps that are under way when Fit is asked to stop have changed the weights: they count.
TEST_F(ParameterServerStrategyTest, AStopLosesNoStep) {
  TestCluster cluster(2, 2);
  const auto strategy = Connect(cluster, 0);
  const auto model = DenseOne(*strategy);
  ASSERT_TRUE(model->Compile(Mse(Sgd(0.01))).ok());
  std::stop_source source;
  StopAfter by_token(3, &source), by_callback(3, nullptr);
  const trainer::Arrays data{Ones(400), Ones(400), 10};
  const auto stopped =
      model->Fit(data, {.epochs = 2, .callbacks = {&by_token}, .stop = source.get_token()});
  ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
  EXPECT_EQ(stopped->end, train::FitEnd::kStopped);
  EXPECT_GE(model->steps(), 3);
  EXPECT_LT(model->steps(), 40);
  EXPECT_EQ(model->steps(), strategy->coordinator().stats().steps_done);
  const auto asked = model->Fit(data, {.epochs = 2, .callbacks = {&by_callback}});
  ASSERT_TRUE(asked.ok()) << asked.status().ToString();
  EXPECT_EQ(asked->end, train::FitEnd::kStopped);
  EXPECT_EQ(model->steps(), strategy->coordinator().stats().steps_done);
  EXPECT_EQ(model->steps(), cluster.server(0).stats().pushes);
  ASSERT_TRUE(model->Fit(data, {.steps_per_epoch = 5}).ok());
  EXPECT_EQ(model->steps(), strategy->coordinator().stats().steps_done);
}

TEST_F(ParameterServerStrategyTest, ALossThatIsNotFiniteEndsFitAndTrainingCanGoOn) {
  TestCluster cluster(2, 1);
  const auto strategy = Connect(cluster);
  const auto model = DenseOne(*strategy, 0.5);
  ASSERT_TRUE(model->Compile(Mse(Sgd(0.1))).ok());
  const Tensor x = Floats({4, 1}, {1, 1, std::numeric_limits<float>::infinity(), 1});
  const auto history = model->Fit(trainer::Arrays{x, Ones(4), 2}, {.epochs = 2});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(history->end, train::FitEnd::kNotFinite);
  EXPECT_THAT(history->message, HasSubstr("output `loss`: expected finite numbers, got: "));
  EXPECT_THAT(history->message, HasSubstr("first not finite: input x; nothing was pushed"));
  const auto w = [&] { return FloatsOf(strategy->Read(model->parameters()[0]).value())[0]; };
  EXPECT_NEAR(w(), 0.6, 1e-6);  // of the first step alone
  // w and b after one more step from 0.6 and 0.1: both plus 0.1 * 2 * 0.3.
  const auto more = model->Fit(trainer::Arrays{Ones(2), Ones(2), 2});
  ASSERT_TRUE(more.ok()) << more.status().ToString();
  EXPECT_NEAR(more->Of("loss").at(0), 0.09, 1e-6);
  EXPECT_NEAR(w(), 0.66, 1e-6);
}

TEST_F(ParameterServerStrategyTest, BatchesThatDoNotFitAreRefusedBeforeTheyAreSent) {
  TestCluster cluster(1, 1);
  const auto strategy = Connect(cluster);
  const auto model = DenseOne(*strategy);
  EXPECT_EQ(model->Fit(trainer::Arrays{Ones(4), Ones(4)}).status().code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(model->Compile(Mse(Sgd(0.1))).ok());
  ASSERT_TRUE(model->Fit(trainer::Arrays{Ones(4), Ones(4)}).ok());
  const Status wide = model->Predict(Floats({2, 2}, {1, 2, 3, 4})).status();
  EXPECT_EQ(wide.code(), StatusCode::kInvalidArgument) << wide.ToString();
  EXPECT_TRUE(model->Evaluate(trainer::Arrays{Ones(3), Ones(3), 2}).ok());
  EXPECT_EQ(model->steps(), 1);
}

// A server that is killed in the middle comes back with what it acknowledged: the figures are
// those of an undisturbed run.
TEST_F(ParameterServerStrategyTest, AServerThatComesBackChangesNothing) {
  const auto one = Strategy::OneDevice("cpu:0").value();
  const auto straight = TwoLayers(*one);
  ASSERT_TRUE(straight->Compile(Mse(Adam())).ok());
  const std::vector<double> want = FitWaves(*straight, 6);
  TestCluster cluster(2, 1, folder_);
  const auto strategy = Connect(cluster);
  const auto model = TwoLayers(*strategy);
  ASSERT_TRUE(model->Compile(Mse(Adam())).ok());
  train::FunctionCallback kill;
  int restarts = 0;
  kill.on_step_end = [&](const train::StepInfo& info) {
    if (info.position.step % 5 == 0) {
      const int server = restarts++ % 2;
      cluster.StopServer(server);
      cluster.StartServer(server);
    }
    return OkStatus();
  };
  const auto history = model->Fit(Waves(), {.epochs = 6, .callbacks = {&kill}});
  ASSERT_TRUE(history.ok()) << history.status().ToString();
  EXPECT_EQ(restarts, 3);
  EXPECT_THAT(history->Of("loss"), Pointwise(DoubleNear(1e-6), want));
}

TEST_F(ParameterServerStrategyTest, TheEstimatorGoesOnFromItsModelDir) {
  constexpr double kRate = 0.01;
  const trainer::InputFn input = []() -> Result<trainer::Examples> {
    MT_ASSIGN_OR_RETURN(auto pipeline, ArraysPipeline({Ones(100), Ones(100)}, 10));
    return trainer::Examples{{"feats"}, std::move(pipeline)};
  };
  for (int run = 1; run <= 2; ++run) {
    TestCluster cluster(2, 1);
    const auto strategy = Connect(cluster);
    const auto mirrored = Strategy::Mirrored({.count = 2}).value();
    // Trained there, evaluated here.
    trainer::LinearRegressor regressor({{"feats"}}, Sgd(kRate),
                                       {.train_distribute = strategy.get(),
                                        .eval_distribute = mirrored.get(),
                                        .model_dir = folder_});
    const Status trained = regressor.Train(input, 5);
    ASSERT_TRUE(trained.ok()) << trained.ToString();
    EXPECT_EQ(regressor.global_step(), 5 * run);
    const auto figures = regressor.Evaluate(input, 1);
    ASSERT_TRUE(figures.ok()) << figures.status().ToString();
    EXPECT_NEAR(figures->prediction_mean, 1 - std::pow(1 - 4 * kRate, 5 * run), 1e-6);
  }
}

// What a strategy cannot do does not compile, instead of being refused.
template <typename S>
concept HasReplicas = requires(S& s, const ReplicaFunction& function) {
  s.Run(function);
  s.local_replicas();
};
template <typename S>
concept HasMesh = requires(S& s) {
  s.mesh();
  s.session();
};
template <typename S>
concept HasServers = requires(S& s) {
  s.coordinator();
};
static_assert(!HasReplicas<ServerStrategy> && !HasMesh<ServerStrategy> &&
              HasServers<ServerStrategy>);
static_assert(!HasReplicas<MeshStrategy> && HasMesh<MeshStrategy> && !HasServers<MeshStrategy>);
static_assert(HasReplicas<ReplicaStrategy> && HasMesh<ReplicaStrategy> &&
              !HasServers<ReplicaStrategy>);
static_assert(!HasReplicas<Strategy> && !HasMesh<Strategy> && !HasServers<Strategy>);

TEST_F(ParameterServerStrategyTest, SaysWhatItCannotBeginWith) {
  const TestCluster cluster(1, 1);
  const auto nobody = Strategy::ParameterServer({});
  EXPECT_EQ(nobody.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(nobody.status().message(), HasSubstr("ParameterServerStrategy: "));
  const auto negative =
      Strategy::ParameterServer({.coordinator = cluster.options(), .steps_in_flight = -1});
  EXPECT_THAT(negative.status().message(), HasSubstr("steps_in_flight: expected at least 0"));
}

}  // namespace
}  // namespace meshtrain::strategy
