// What a program of parameter servers can do that includes their header and nothing else of ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/parameter_servers.h"

namespace meshtrain {
namespace {

using membership::Environment;
using parameter::Coordinator;
using parameter::OptionsFromEnvironment;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class ParameterServersTest : public ::testing::Test {
 protected:
  ParameterServersTest() {
    std::string path = (std::filesystem::temp_directory_path() / "meshtrain-XXXXXX").string();
    folder_ = ::mkdtemp(path.data());
  }
  ~ParameterServersTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

Environment EnvironmentOf(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

// Two servers and a worker, each behind a port of this process.
struct Cluster {
  std::vector<std::unique_ptr<parameter::ParameterServer>> servers;
  std::unique_ptr<parameter::WorkerServer> worker;
  Environment environment;  // the chief's
};
Result<Cluster> Serve() {
  Cluster cluster;
  const Environment own = EnvironmentOf({{"MESHTRAIN_JOB", "tests/header"}});
  nlohmann::json tf_config = {{"task", {{"type", "chief"}, {"index", 0}}}};
  tf_config["cluster"]["chief"] = {"127.0.0.1:1"};
  const auto address = [](int port) { return "127.0.0.1:" + std::to_string(port); };
  for (int s = 0; s < 2; ++s) {
    parameter::ServerOptions options;
    MT_ASSIGN_OR_RETURN(options.identity, parameter::IdentityOf(own));
    MT_ASSIGN_OR_RETURN(auto server, parameter::ParameterServer::Serve(std::move(options)));
    tf_config["cluster"]["ps"].push_back(address(server->port()));
    cluster.servers.push_back(std::move(server));
  }
  parameter::WorkerOptions options;
  MT_ASSIGN_OR_RETURN(options.executor.identity, parameter::IdentityOf(own));
  options.executor.session.threads = 1;
  MT_ASSIGN_OR_RETURN(cluster.worker, parameter::WorkerServer::Serve(std::move(options)));
  tf_config["cluster"]["worker"] = {address(cluster.worker->port())};
  cluster.environment = EnvironmentOf({{"MESHTRAIN_JOB", "tests/header"},
                                       {"TF_CONFIG", tf_config.dump()},
                                       {"MESHTRAIN_PEER_RETURN_SECONDS", "60"}});
  return cluster;
}

Result<std::unique_ptr<Coordinator>> Connect(const Cluster& cluster,
                                             parameter::CoordinatorOptions options) {
  MT_ASSIGN_OR_RETURN(options, OptionsFromEnvironment(std::move(options), cluster.environment));
  options.start_timeout = seconds(60);
  options.lost_after = seconds(10);  // nobody stands still here, but the machine may be busy
  return Coordinator::Create(std::move(options));
}

Tensor Ones(int64_t n) {
  return Tensor::Of<float>({n, 1}, std::vector<float>(static_cast<size_t>(n), 1));
}
std::shared_ptr<nn::Layer> DenseOne(double w0, double l2) {
  nn::DenseOptions options{.kernel_initializer = nn::Initializer::Constant(w0)};
  if (l2 != 0) options.kernel_regularizer = nn::L2(l2);
  return std::make_shared<nn::Sequential>(nn::Dense(1, options));
}
train::Recipe MseRecipe(std::shared_ptr<nn::Layer> model, double learning_rate) {
  train::Recipe recipe;
  recipe.model = std::move(model);
  recipe.heads[0].loss = train::losses::MeanSquaredError();
  recipe.optimizer = train::Sgd({.common = {.learning_rate = learning_rate}});
  return recipe;
}

// The mean loss of so many steps, each over before the next.
Result<double> MeanLoss(Coordinator& coordinator, const parameter::Function& step, int64_t steps,
                        const std::vector<parameter::Arg>& arguments) {
  double sum = 0;
  for (int64_t i = 0; i < steps; ++i) {
    MT_ASSIGN_OR_RETURN(const parameter::RemoteValue value, coordinator.Schedule(step, arguments));
    MT_ASSIGN_OR_RETURN(const parameter::Outputs outputs,
                        coordinator.Fetch(value, {}, seconds(60)));
    if (outputs.empty() || outputs[0].first != train::kLossName) {
      return Internal("expected the loss first, got: " + std::to_string(outputs.size()));
    }
    sum += outputs[0].second.Item();
  }
  return sum / static_cast<double>(steps);
}

struct Example {
  double w0 = 0;
  std::vector<double> losses;  // two epochs, the evaluation, two epochs
};
Example KerasExample() {
  std::ifstream file(MT_TESTDATA "/guide/tf_strategies.json");
  const nlohmann::json fit = nlohmann::json::parse(file).at("fit");
  Example example{.w0 = fit.at("w0"), .losses = fit.at("loss").get<std::vector<double>>()};
  example.losses.push_back(fit.at("evaluate"));
  for (const double loss : fit.at("loss_numpy")) example.losses.push_back(loss);
  return example;
}

// Dense(1), kernel L2 1e-4, mse, SGD 0.01, ([1], [1]) x 100 in batches of 10: what TensorFlow gave.
// The weights of the middle go on under another strategy.
TEST_F(ParameterServersTest, TheKerasExampleAndItsCheckpointUnderMirrored) {
  const Example example = KerasExample();
  ASSERT_EQ(example.losses.size(), 5u);
  std::vector<double> remote, resumed;
  const auto train = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const Cluster cluster, Serve());
    MT_ASSIGN_OR_RETURN(
        const auto coordinator,
        Connect(cluster, {.partitioner = parameter::FixedShards{2}, .checkpoint_folder = folder_}));
    const TensorType batch = Ones(10).type();
    const parameter::BatchTypes types[] = {{batch, batch}};
    MT_ASSIGN_OR_RETURN(
        const parameter::Training training,
        coordinator->DefineTraining(MseRecipe(DenseOne(example.w0, 1e-4), 0.01), types));
    MT_ASSIGN_OR_RETURN(
        const parameter::PerWorker data,
        coordinator->CreatePerWorkerDataset(
            "train", {.source = {.from = data::MemoryArrays{{Ones(100), Ones(100)}}},
                      .stages = {data::BatchStage{10}}}));
    const std::vector<parameter::Arg> at_hand = {Ones(10), Ones(10)};
    const auto add = [&](const parameter::Function& step,
                         const std::vector<parameter::Arg>& arguments) -> Status {
      MT_ASSIGN_OR_RETURN(const double loss, MeanLoss(*coordinator, step, 10, arguments));
      remote.push_back(loss);
      return OkStatus();
    };
    MT_RETURN_IF_ERROR(add(training.step, {data}));
    MT_RETURN_IF_ERROR(add(training.step, {data}));
    MT_RETURN_IF_ERROR(coordinator->Save(20));
    MT_RETURN_IF_ERROR(coordinator->WaitForSave());
    MT_RETURN_IF_ERROR(add(training.evaluate, at_hand));
    MT_RETURN_IF_ERROR(add(training.step, at_hand));
    MT_RETURN_IF_ERROR(add(training.step, at_hand));
    coordinator->End();
    if (!cluster.worker->ended()) return Internal("expected the worker to be told of the end");
    return OkStatus();
  };
  const Status trained = train();
  ASSERT_TRUE(trained.ok()) << trained.ToString();
  EXPECT_THAT(remote, Pointwise(::testing::DoubleNear(1e-6), example.losses));

  const auto resume = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const auto strategy, strategy::Strategy::Mirrored({.count = 2}));
    const auto scope = strategy->Scope();
    trainer::Model model(DenseOne(0, 1e-4));
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
    MT_RETURN_IF_ERROR(model.Restore(folder_));
    if (model.steps() != 20)
      return Internal("expected 20 steps, got: " + std::to_string(model.steps()));
    const trainer::Arrays ones{Ones(100), Ones(100), 10};
    MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(ones));
    resumed.push_back(train::FindScalar(evaluated, "loss").value());
    MT_ASSIGN_OR_RETURN(const trainer::History history, model.Fit(ones, {.epochs = 2}));
    for (const double loss : history.Of("loss")) resumed.push_back(loss);
    return OkStatus();
  };
  const Status went_on = resume();
  ASSERT_TRUE(went_on.ok()) << went_on.ToString();
  const std::vector<double> rest(example.losses.begin() + 2, example.losses.end());
  EXPECT_THAT(resumed, Pointwise(::testing::DoubleNear(1e-6), rest));
}

// The chief's program: the environment, a strategy, a model.
TEST_F(ParameterServersTest, AModelOverThemAndItsCheckpoint) {
  const Example example = KerasExample();
  ASSERT_EQ(example.losses.size(), 5u);
  std::vector<double> losses;
  const auto run = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const Cluster cluster, Serve());
    MT_ASSIGN_OR_RETURN(auto options, OptionsFromEnvironment({}, cluster.environment));
    options.start_timeout = seconds(60);
    options.lost_after = seconds(10);
    MT_ASSIGN_OR_RETURN(const auto strategy,
                        strategy::Strategy::ParameterServer({.coordinator = std::move(options)}));
    const auto scope = strategy->Scope();
    trainer::Model model(DenseOne(example.w0, 1e-4));
    MT_RETURN_IF_ERROR(
        model.Compile({.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
    const trainer::Arrays ones{Ones(100), Ones(100), 10};
    const auto fit = [&]() -> Status {
      MT_ASSIGN_OR_RETURN(const trainer::History history, model.Fit(ones, {.epochs = 2}));
      for (const double loss : history.Of("loss")) losses.push_back(loss);
      return OkStatus();
    };
    MT_RETURN_IF_ERROR(fit());
    MT_RETURN_IF_ERROR(model.Save(folder_).status());
    MT_ASSIGN_OR_RETURN(const train::Scalars evaluated, model.Evaluate(ones));
    losses.push_back(train::FindScalar(evaluated, "loss").value());
    MT_RETURN_IF_ERROR(fit());
    MT_RETURN_IF_ERROR(model.Restore(folder_));
    if (model.steps() != 20) return Internal("steps: " + std::to_string(model.steps()));
    MT_RETURN_IF_ERROR(fit());
    strategy->coordinator().End();
    if (!cluster.worker->ended()) return Internal("expected the worker to be told of the end");
    return OkStatus();
  };
  const Status status = run();
  ASSERT_TRUE(status.ok()) << status.ToString();
  std::vector<double> want = example.losses;
  want.insert(want.end(), want.begin() + 3, want.begin() + 5);  // from the checkpoint once more
  EXPECT_THAT(losses, Pointwise(::testing::DoubleNear(1e-6), want));
}

// A step that changes nothing is any traced program over the model's variables.
TEST_F(ParameterServersTest, FiveEpochsOfTenStepsAndTheModelPredictsOne) {
  std::vector<double> losses;
  Tensor predictions;
  const auto run = [&]() -> Status {
    MT_ASSIGN_OR_RETURN(const Cluster cluster, Serve());
    MT_ASSIGN_OR_RETURN(const auto coordinator, Connect(cluster, {}));
    const auto layer = DenseOne(0.194, 0);
    const TensorType batch = Ones(10).type();
    const parameter::BatchTypes types[] = {{batch, batch}};
    MT_ASSIGN_OR_RETURN(const parameter::Training training,
                        coordinator->DefineTraining(MseRecipe(layer, 0.1), types));
    for (int epoch = 0; epoch < 5; ++epoch) {
      MT_ASSIGN_OR_RETURN(const double loss,
                          MeanLoss(*coordinator, training.step, 10, {Ones(10), Ones(10)}));
      losses.push_back(loss);
    }
    program::Builder builder("predict");
    {
      const program::Builder::Scope recording(builder);
      const nn::ContextScope context({.training = false});
      builder.Output("predictions", (*layer)(builder.Input("x", Ones(7).type())));
    }
    MT_ASSIGN_OR_RETURN(const program::Program program, builder.Build());
    MT_ASSIGN_OR_RETURN(const parameter::Function predict, coordinator->DefineFunction(program));
    MT_ASSIGN_OR_RETURN(const auto value, coordinator->Schedule(predict, {Ones(7)}));
    MT_ASSIGN_OR_RETURN(const auto outputs, coordinator->Fetch(value, {}, seconds(60)));
    predictions = outputs.at(0).second;
    return OkStatus();
  };
  const Status status = run();
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(losses.size(), 5u);
  for (size_t i = 1; i < losses.size(); ++i) EXPECT_LT(losses[i], losses[i - 1]);
  EXPECT_LT(losses[4], 1e-6);
  ASSERT_EQ(predictions.dims(), (mesh::Dims{7, 1}));
  for (const float p : predictions.values<float>()) EXPECT_NEAR(p, 1, 1e-6);
}

TEST_F(ParameterServersTest, OptionsKeepWhatTheEnvironmentDoesNotSay) {
  const std::string text =
      R"({"cluster":{"worker":["w:1"],"ps":["p:1"]},"task":{"type":"worker","index":0}})";
  const auto options =
      OptionsFromEnvironment({.seed = 7, .return_timeout = seconds(5)},
                             EnvironmentOf({{"TF_CONFIG", text}, {"MESHTRAIN_JOB", "ml/mnist"}}));
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->seed, 7);
  EXPECT_EQ(options->return_timeout, seconds(5));
  EXPECT_EQ(options->identity.job, "ml/mnist");
  EXPECT_EQ(options->cluster.host({cluster::Role::kPs, 0}), "p:1");
  const auto told = OptionsFromEnvironment(
      {}, EnvironmentOf({{"TF_CONFIG", text}, {"MESHTRAIN_PEER_RETURN_SECONDS", "9"}}));
  ASSERT_TRUE(told.ok()) << told.status().ToString();
  EXPECT_EQ(told->return_timeout, seconds(9));
}

TEST_F(ParameterServersTest, SaysWhatTheEnvironmentLacks) {
  const auto error = [](std::map<std::string, std::string> variables) {
    return OptionsFromEnvironment({}, EnvironmentOf(std::move(variables))).status();
  };
  EXPECT_EQ(error({}).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(error({}).message(), HasSubstr("expected a cluster in TF_CONFIG, got: none"));
  const std::string hosts = R"({"cluster":{"chief":["c:1"],"worker":["w:1"],"ps":["p:1"]},)";
  const Status worker = error({{"TF_CONFIG", hosts + R"("task":{"type":"worker","index":0}})"}});
  EXPECT_EQ(worker.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(worker.message(), HasSubstr("expected the coordinator in chief-0, got: worker-0"));
  const Status soon = error({{"TF_CONFIG", hosts + R"("task":{"type":"chief","index":0}})"},
                             {"MESHTRAIN_PEER_RETURN_SECONDS", "soon"}});
  EXPECT_EQ(soon.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(soon.message(), HasSubstr("MESHTRAIN_PEER_RETURN_SECONDS"));

  // A cluster without servers is the coordinator's to refuse.
  const std::string none =
      R"({"cluster":{"chief":["c:1"],"worker":["w:1"]},"task":{"type":"chief","index":0}})";
  const auto options = OptionsFromEnvironment({}, EnvironmentOf({{"TF_CONFIG", none}}));
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  const auto coordinator = Coordinator::Create(*options);
  ASSERT_FALSE(coordinator.ok());
  EXPECT_EQ(coordinator.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(coordinator.status().message(), HasSubstr("expected at least one ps"));
}

TEST(FaceTest, AnAxisWithoutWorkIsNamed) {
  const Mesh mesh = Mesh::Parse("batch=2,spare=2,one=1").value();
  EXPECT_TRUE(CheckAxesUsed(mesh, {"batch", "spare", "none"}).ok());
  const Status refused = CheckAxesUsed(mesh, {"batch"});
  EXPECT_THAT(refused.message(), HasSubstr("axis `spare` in no layout"));
  EXPECT_EQ(RunMain("face_test", refused), 78);
  EXPECT_EQ(RunMain("face_test", OkStatus()), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(EndOfUsage("face_test", "--epochs: Value -1 not in range"), 64);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "face_test: --epochs: Value -1 not in range\n");
}

TEST(FaceTest, AnEpochIsALine) {
  const train::Scalars train = {{"loss", 0.83118}, {"accuracy", 0.772}};
  EXPECT_EQ(EpochLine({.epoch = 2, .train = train, .validation = {{"loss", 0.3}}}),
            "epoch 2: train loss 0.8312, train accuracy 0.7720, test loss 0.3000");
}

}  // namespace
}  // namespace meshtrain
