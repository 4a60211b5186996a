// The whole strategy over real gRPC, servers and workers as threads of this process.
// (processes_test.cc kills processes.)
#include "runtime/parameter/chief/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <thread>

#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/jobs_testing.h"
#include "tests/runtime/parameter/must.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using program::Value;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_folder::TempFolder;

std::unique_ptr<Coordinator> Connect(const CoordinatorOptions& options) {
  auto made = Coordinator::Create(options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? std::move(*made) : nullptr;
}

bool WaitForWorkers(const Coordinator& coordinator, int workers) {
  for (int i = 0; i < 600 && coordinator.stats().workers_ready < workers; ++i) {
    SystemClock().SleepFor(milliseconds(50), {});
  }
  return coordinator.stats().workers_ready >= workers;
}

// A step that adds 1 to `n` and gives what it was.
Program CountStep() {
  const program::Variable n("n", TensorType{DType::kI64, {}}, false);
  Builder b("count");
  Builder::Scope scope(b);
  b.Output("before", n);
  program::AssignAdd(n, 1);
  return b.Build().value();
}
Parameter Counter() {
  return Parameter("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                   {.trainable = false});
}

TEST(CoordinatorTest, OneStepAtATimeIsTheGuidesSeries) {
  const GuideSeries guide = ReadGuide();
  ASSERT_EQ(guide.losses.size(), 210u);
  TestCluster cluster(2, 1);
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  const auto coordinator = Connect(options);
  const train::Recipe recipe = GuideRecipe(guide.w0);
  const std::pair<TensorType, TensorType> types[] = {{F32({5, 1}), F32({5, 1})}};
  const Training training = Must(coordinator->DefineTraining(recipe, types));
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("train", GuideData()));
  for (size_t i = 0; i < 210; ++i) {
    const RemoteValue value = Must(coordinator->Schedule(training.step, {data}));
    const Outputs outputs = Must(coordinator->Fetch(value, {}, seconds(60)));
    ASSERT_NEAR(LossOf(outputs), guide.losses[i], 1e-6) << "step " << i;
  }
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  // So small a model comes back with the answers to its pushes.
  EXPECT_LE(cluster.server(0).stats().pulls, 5);
  EXPECT_GE(cluster.server(0).stats().pushes, 210);
}

// Whoever computes it: what a worker held from its own last push lacks the others', and is not
// used.
TEST(CoordinatorTest, OneStepAtATimeIsTheGuidesSeriesWithThreeWorkers) {
  const GuideSeries guide = ReadGuide();
  TestCluster cluster(2, 3);
  const auto coordinator = Connect(cluster.options());
  const std::pair<TensorType, TensorType> types[] = {{F32({5, 1}), F32({5, 1})}};
  const Training training = Must(coordinator->DefineTraining(GuideRecipe(guide.w0), types));
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("train", GuideData()));
  ASSERT_TRUE(WaitForWorkers(*coordinator, 3));
  for (size_t i = 0; i < 210; ++i) {
    const RemoteValue value = Must(coordinator->Schedule(training.step, {data}));
    ASSERT_NEAR(LossOf(Must(coordinator->Fetch(value, {}, seconds(60)))), guide.losses[i], 1e-6)
        << "step " << i;
  }
  EXPECT_THAT(coordinator->stats().worker_steps, testing::ElementsAre(70, 70, 70));
}

TEST(CoordinatorTest, OneStepAtATimeIsTheSingleProcess) {
  TestCluster cluster(2, 1);
  CoordinatorOptions options = cluster.options();
  options.partitioner = MinSize{4096, 3};
  options.seed = 11;
  const auto coordinator = Connect(options);
  const std::pair<TensorType, TensorType> types[] = {{F32({100, 28, 28}), {DType::kI32, {100}}}};
  const auto optimizer = [] {
    return train::Adam({.common = {.learning_rate = 0.003, .clipnorm = 0.5}});
  };
  std::map<std::string, Tensor> want_states;
  const std::vector<double> want =
      Must(TrainAlone(DigitsRecipe(optimizer()), DigitsData(100), types[0].first, types[0].second,
                      30, &want_states));
  const Training training = Must(coordinator->DefineTraining(DigitsRecipe(optimizer()), types));
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("train", DigitsData(100)));
  EXPECT_EQ(coordinator->planner().ShardsOf("hidden.kernel").size(), 3u);
  for (size_t i = 0; i < want.size(); ++i) {
    const Outputs outputs = Must(
        coordinator->Fetch(Must(coordinator->Schedule(training.step, {data})), {}, seconds(60)));
    ASSERT_NEAR(LossOf(outputs), want[i], 1e-6) << "step " << i;
  }
  for (const auto& [name, value] : want_states) {
    const Tensor got = Must(coordinator->Read(name));
    ASSERT_EQ(got.type(), value.type()) << name;
    if (value.type().dtype != DType::kF32) {
      EXPECT_EQ(got.Item(), value.Item()) << name;
      continue;
    }
    double worst = 0;
    for (int64_t i = 0; i < value.type().num_elements(); ++i) {
      worst = std::max<double>(worst, std::abs(got.values<float>()[i] - value.values<float>()[i]));
    }
    EXPECT_LT(worst, 1e-6) << name;
  }
}

TEST(CoordinatorTest, ManyWorkersCountEveryStepOnce) {
  TestCluster cluster(1, 3);
  CoordinatorOptions options = cluster.options();
  options.steps_in_flight = 4;
  const auto coordinator = Connect(options);
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  std::vector<RemoteValue> values;
  for (int i = 0; i < 300; ++i) values.push_back(Must(coordinator->Schedule(count, {})));
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  EXPECT_TRUE(Must(coordinator->Done()));
  EXPECT_EQ(Must(coordinator->Read("n")).Item(), 300);
  for (const RemoteValue& value : values) {
    const double before = Must(coordinator->Fetch(value, {}, seconds(1)))[0].second.Item();
    EXPECT_GE(before, 0);
    EXPECT_LT(before, 300);
  }
  EXPECT_EQ(coordinator->stats().steps_done, 300);
}

TEST(CoordinatorTest, AsynchronousTrainingLearns) {
  TestCluster cluster(2, 2);
  CoordinatorOptions options = cluster.options();
  options.partitioner = MinSize{16384, 2};
  options.seed = 11;
  const auto coordinator = Connect(options);
  const std::pair<TensorType, TensorType> types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const Training training = Must(coordinator->DefineTraining(
      DigitsRecipe(train::Adam({.common = {.learning_rate = 0.002}})), types));
  const PerWorker data =
      Must(coordinator->CreatePerWorkerDataset("train", DigitsData(50), ShardPolicy::kByElement));
  std::vector<RemoteValue> losses;
  for (int i = 0; i < 160; ++i) {
    losses.push_back(Must(coordinator->Schedule(training.step, {data})));
  }
  const Status joined = coordinator->Join({}, seconds(100));
  ASSERT_TRUE(joined.ok()) << joined.ToString();
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    first += LossOf(Must(coordinator->Fetch(losses[i]))) / 10;
    last += LossOf(Must(coordinator->Fetch(losses[losses.size() - 1 - i]))) / 10;
  }
  EXPECT_GT(first, 1.2);
  EXPECT_LT(last, 0.5 * first);
  // An evaluation changes nothing.
  const Tensor before = Must(coordinator->Read("logits.kernel"));
  const Outputs evaluated =
      Must(coordinator->Fetch(Must(coordinator->Schedule(training.evaluate, {data}))));
  EXPECT_EQ(evaluated.size(), 2u);
  EXPECT_EQ(evaluated[1].first, "accuracy");
  const Tensor after = Must(coordinator->Read("logits.kernel"));
  EXPECT_EQ(std::memcmp(before.bytes().data(), after.bytes().data(), before.bytes().size()), 0);
  EXPECT_EQ(Must(coordinator->Read("optimizer.iterations")).Item(), 160);
}

TEST(CoordinatorTest, AShortLastBatchHasItsOwnStep) {
  TestCluster cluster(1, 1);
  const auto coordinator = Connect(cluster.options());
  const train::Recipe recipe = GuideRecipe(-0.38);
  const std::pair<TensorType, TensorType> types[] = {{F32({5, 1}), F32({5, 1})},
                                                     {F32({2, 1}), F32({2, 1})}};
  const Training training = Must(coordinator->DefineTraining(recipe, types));
  data::PipelineSpec seven = GuideData();
  seven.source.take = 7;
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("seven", seven));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(coordinator->Schedule(training.step, {data}).ok());
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  // A size that no step was made for.
  seven.source.take = 3;
  const PerWorker three = Must(coordinator->CreatePerWorkerDataset("three", seven));
  ASSERT_TRUE(coordinator->Schedule(training.step, {three}).ok());
  const Status wrong = coordinator->Join({}, seconds(60));
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(
      wrong.message().find(
          "expected arguments of types f32[5,1], f32[5,1], f32[2,1], f32[2,1], got: f32[3,1], "
          "f32[3,1]"),
      std::string::npos)
      << wrong.message();
}

TEST(CoordinatorTest, WorkersHaveValuesOfTheirOwn) {
  TestCluster cluster(1, 2);
  const auto coordinator = Connect(cluster.options());
  const std::vector<Parameter> variables = {
      Parameter("sum", TensorType{DType::kF32, {}}, nn::Initializer::Zeros())};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  Builder b("add");
  {
    Builder::Scope scope(b);
    const Value mine = b.Input("mine", F32({}));
    const Value scale = b.Input("scale", F32({}));
    program::AssignAdd(variables[0], mine * scale);
    b.Output("mine", mine);
  }
  const Function add = Must(coordinator->DefineFunction(b.Build().value()));
  const PerWorker own = Must(
      coordinator->CreatePerWorkerValue("own", {Tensor::Scalar(1.0f), Tensor::Scalar(100.0f)}));
  std::vector<RemoteValue> values;
  for (int i = 0; i < 40; ++i) {
    values.push_back(Must(coordinator->Schedule(add, {own, Tensor::Scalar(2.0f)})));
  }
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  double sum = 0;
  for (const RemoteValue& value : values) {
    sum += 2 * Must(coordinator->Fetch(value))[0].second.Item();
  }
  EXPECT_EQ(Must(coordinator->Read("sum")).Item(), sum);
  EXPECT_EQ(coordinator->CreatePerWorkerValue("few", {Tensor::Scalar(1.0f)}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(CoordinatorTest, AStepsErrorEndsJoinAndCancelsTheRest) {
  TestCluster cluster(1, 1);
  const auto coordinator = Connect(cluster.options());
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  Builder b("divide");
  {
    Builder::Scope scope(b);
    b.Output("loss", b.Input("x", F32({})) / 0.0);
    program::AssignAdd(variables[0], 1000);
  }
  const Function divide = Must(coordinator->DefineFunction(b.Build().value(), "", {}, {"loss"}));
  cluster.StopWorker(0);  // no step fails before all are scheduled
  const RemoteValue good = Must(coordinator->Schedule(count, {}));
  const RemoteValue bad = Must(coordinator->Schedule(divide, {Tensor::Scalar(1.0f)}));
  std::vector<RemoteValue> rest;
  for (int i = 0; i < 20; ++i) rest.push_back(Must(coordinator->Schedule(count, {})));
  cluster.StartWorker(0);
  const Status error = coordinator->Join({}, seconds(60));
  EXPECT_EQ(error.code(), StatusCode::kAborted);
  EXPECT_NE(
      error.message().find("output `loss`: expected finite numbers, got: inf; first not finite: "
                           "div at coordinator_test.cc:"),
      std::string::npos)
      << error.message();
  EXPECT_TRUE(coordinator->Fetch(good, {}, seconds(1)).ok());
  EXPECT_EQ(coordinator->Fetch(bad, {}, seconds(1)).status().code(), StatusCode::kAborted);
  EXPECT_EQ(coordinator->Fetch(rest.back(), {}, seconds(1)).status().code(),
            StatusCode::kCancelled);
  // Told once; then it goes on.
  EXPECT_TRUE(Must(coordinator->Done()));
  const int64_t before = static_cast<int64_t>(Must(coordinator->Read("n")).Item());
  EXPECT_LT(before, 1000);
  ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  EXPECT_EQ(Must(coordinator->Read("n")).Item(), static_cast<double>(before + 1));
}

TEST(CoordinatorTest, DefinitionsThatDoNotFitAreRefusedAtOnce) {
  TestCluster cluster(1, 1);
  const auto coordinator = Connect(cluster.options());
  const std::vector<Parameter> variables = {Counter()};
  EXPECT_EQ(coordinator->DefineFunction(CountStep()).status().code(), StatusCode::kInvalidArgument)
      << "no such variable yet";
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  EXPECT_EQ(coordinator->CreateVariables(variables).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(coordinator->Read("m").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(coordinator->Write("n", Tensor::Scalar(1.0f)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(coordinator->Save(1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(coordinator->Schedule(Function{{7}}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(CoordinatorTest, TheEndIsToldToEveryProcessThatIsThere) {
  TestCluster cluster(2, 3);
  const auto coordinator = Connect(cluster.options());
  const Parameter n("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                    {.trainable = false});
  const std::vector<Parameter> variables = {n};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  program::Builder b("count");
  {
    program::Builder::Scope scope(b);
    program::AssignAdd(n, 1);
  }
  const Function count = Must(coordinator->DefineFunction(b.Build().value()));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  ASSERT_TRUE(WaitForWorkers(*coordinator, 3));
  EXPECT_FALSE(cluster.worker(0).ended());
  EXPECT_FALSE(cluster.server(0).ended());
  cluster.StopWorker(2);
  coordinator->End(seconds(10));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(cluster.worker(i).ended());
    EXPECT_TRUE(cluster.server(i).ended());
    EXPECT_GT(cluster.server(i).stats().pulls + cluster.server(1 - i).stats().pulls, 0);
  }
  // A coordinator of before ends nobody who works for another one.
  const auto next = Connect(cluster.options());
  cluster.StopServer(0);
  cluster.StartServer(0);
  coordinator->End(seconds(2));
  EXPECT_FALSE(cluster.server(0).ended());
}

TEST(CoordinatorTest, ATooStalePushIsComputedAnew) {
  TestCluster cluster(1, 3);
  CoordinatorOptions options = cluster.options();
  options.staleness_bound = 0;  // as if the workers took turns
  const auto coordinator = Connect(options);
  const Parameter w("w", TensorType{DType::kF64, {}}, nn::Initializer::Constant(1));
  const std::vector<Parameter> variables = {w};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  // Doubling is not what adding late differences makes: 2^20 comes out only where every step saw
  // the one before.
  Builder b("double");
  {
    Builder::Scope scope(b);
    program::Assign(w, w * 2.0);
  }
  const Function twice = Must(coordinator->DefineFunction(b.Build().value()));
  ASSERT_TRUE(WaitForWorkers(*coordinator, 3));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(coordinator->Schedule(twice, {}).ok());
  const Status joined = coordinator->Join({}, seconds(60));
  ASSERT_TRUE(joined.ok()) << joined.ToString();
  EXPECT_EQ(Must(coordinator->Read("w")).Item(), 1048576);
  // Three work at the same time, on values that the pushes of the others leave behind.
  EXPECT_GE(cluster.server(0).stats().stale, 1);
}

TEST(CoordinatorTest, AWorkerThatGoesAndComesBackIsUsedAgain) {
  TestCluster cluster(1, 2);
  const auto coordinator = Connect(cluster.options());
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
    const Status joined = coordinator->Join({}, seconds(60));
    ASSERT_TRUE(joined.ok()) << joined.ToString();
  };
  run(20);
  cluster.StopWorker(0);
  run(20);
  cluster.StopWorker(1);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  cluster.StartWorker(1);
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  cluster.StartWorker(0);
  ASSERT_TRUE(WaitForWorkers(*coordinator, 2));
  run(20);
  EXPECT_GE(Must(coordinator->Read("n")).Item(), 80);
}

TEST(CoordinatorTest, AServerThatComesBackWithItsLogGoesOn) {
  const TempFolder folder;
  TestCluster cluster(2, 2, folder.path());
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  const auto coordinator = Connect(options);
  const Parameter v("v", TensorType{DType::kI64, {6}}, nn::Initializer::Zeros());
  const std::vector<Parameter> variables = {v};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  Builder b("count");
  {
    Builder::Scope scope(b);
    program::AssignAdd(v, program::Ones({6}, DType::kI64));
  }
  const Function count = Must(coordinator->DefineFunction(b.Build().value()));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  cluster.StopServer(1);
  cluster.StartServer(1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  const Status joined = coordinator->Join({}, seconds(60));
  ASSERT_TRUE(joined.ok()) << joined.ToString();
  const Tensor counts = Must(coordinator->Read("v"));
  // A push that was acknowledged is in; one that was not has been sent again, and counts once.
  for (const int64_t n : counts.values<int64_t>()) EXPECT_EQ(n, 100);
}

TEST(CoordinatorTest, AServerThatLostItsStateEndsTheJob) {
  TestCluster cluster(1, 1);  // no log
  const auto coordinator = Connect(cluster.options());
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  cluster.StopServer(0);
  cluster.StartServer(0);
  Status error;
  for (int i = 0; i < 100 && error.ok(); ++i) {
    const auto scheduled = coordinator->Schedule(count, {});
    error = scheduled.ok() ? coordinator->Join({}, seconds(60)) : scheduled.status();
  }
  EXPECT_EQ(error.code(), StatusCode::kDataLoss) << error.ToString();
  EXPECT_EQ(error.message().find("ps-0: expected session "), 0u) << error.message();
}

TEST(CoordinatorTest, WhoNeverComesIsNamed) {
  TestCluster cluster(1, 1);
  CoordinatorOptions options = cluster.options();
  options.start_timeout = seconds(3);
  cluster.StopWorker(0);
  {
    const auto coordinator = Connect(options);
    ASSERT_NE(coordinator, nullptr);
    const std::vector<Parameter> variables = {Counter()};
    ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
    const Function count = Must(coordinator->DefineFunction(CountStep()));
    ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
    const Status none = coordinator->Join({}, seconds(60));
    EXPECT_EQ(none.code(), StatusCode::kUnavailable);
    EXPECT_NE(none.message().find("expected a worker within 3 s, got: worker-0: 127.0.0.1:"),
              std::string::npos)
        << none.message();
  }
  cluster.StopServer(0);
  const auto nobody = Coordinator::Create(options);
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(nobody.status().message().find("ps-0"), std::string::npos) << nobody.status().message();
  options.cluster.hosts.erase(cluster::Role::kPs);
  EXPECT_EQ(Coordinator::Create(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(CoordinatorTest, AReplacedCoordinatorIsRefused) {
  TestCluster cluster(1, 1);
  CoordinatorOptions options = cluster.options();
  options.session = 100;
  const auto old = Connect(options);
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(old->CreateVariables(variables).ok());
  options.session = 101;
  const auto next = Connect(options);
  EXPECT_EQ(old->Read("n").status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(next->CreateVariables(variables).ok());
  EXPECT_TRUE(next->Read("n").ok());
  options.session = 99;
  EXPECT_EQ(Coordinator::Create(options).status().code(), StatusCode::kFailedPrecondition);
}

TEST(CoordinatorTest, ACheckpointIsACutBetweenSteps) {
  const TempFolder folder;
  TestCluster cluster(2, 3, folder.path());
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  options.checkpoint_folder = folder.path() + "/checkpoints";
  options.steps_in_flight = 2;
  const auto coordinator = Connect(options);
  // Every step adds 1 to each element, on both servers, and to a count.
  const Parameter v("v", TensorType{DType::kI64, {64, 3}}, nn::Initializer::Zeros());
  const std::vector<Parameter> variables = {v, Counter()};
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  Builder b("count");
  {
    Builder::Scope scope(b);
    program::AssignAdd(v, program::Ones({64, 3}, DType::kI64));
    program::AssignAdd(variables[1], 1);
  }
  const Function count = Must(coordinator->DefineFunction(b.Build().value()));
  for (int save = 1; save <= 5; ++save) {
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
    const Status saved = coordinator->Save(save, {{"epoch", "1"}});
    ASSERT_TRUE(saved.ok()) << saved.ToString();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  }
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  ASSERT_TRUE(coordinator->WaitForSave().ok());
  EXPECT_EQ(coordinator->last_saved(), 5);
  const auto candidates = Must(checkpoint::ListCheckpoints(options.checkpoint_folder));
  ASSERT_EQ(candidates.size(), 5u);
  for (const auto& candidate : candidates) {
    const auto checkpoint = Must(checkpoint::Checkpoint::Open(candidate.path));
    ASSERT_TRUE(checkpoint->Verify().ok());
    EXPECT_EQ(checkpoint->index().metadata.at("epoch"), "1");
    const double n = Must(checkpoint->Load("n")).Item();
    const Tensor all = Must(checkpoint->Load("v"));
    for (const int64_t element : all.values<int64_t>()) ASSERT_EQ(static_cast<double>(element), n);
  }
}

TEST(CoordinatorTest, AJobGoesOnFromItsCheckpointAndAMeshWithIt) {
  const TempFolder folder;
  const std::pair<TensorType, TensorType> types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const auto recipe = [] {
    return DigitsRecipe(train::Adam({.common = {.learning_rate = 0.002}}));
  };
  const std::vector<double> want =
      Must(TrainAlone(recipe(), DigitsData(50), types[0].first, types[0].second, 20));
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.seed = 11;
  options.checkpoint_folder = folder.path() + "/checkpoints";
  const auto train = [&](Coordinator& coordinator, size_t from, size_t to) {
    const Training training = Must(coordinator.DefineTraining(recipe(), types));
    const PerWorker data = Must(coordinator.CreatePerWorkerDataset("train", DigitsData(50)));
    for (size_t i = from; i < to; ++i) {
      const Outputs outputs = Must(
          coordinator.Fetch(Must(coordinator.Schedule(training.step, {data})), {}, seconds(60)));
      ASSERT_NEAR(LossOf(outputs), want[i], 1e-6) << "step " << i;
    }
  };
  {
    options.partitioner = FixedShards{3};
    const auto coordinator = Connect(options);
    train(*coordinator, 0, 10);
    ASSERT_TRUE(coordinator->Save(10).ok());
    ASSERT_TRUE(coordinator->WaitForSave().ok());
  }
  const std::string path = checkpoint::CheckpointFolder(options.checkpoint_folder, 10);
  {
    // Other shards on the same servers; the dataset goes on where it was.
    options.partitioner = Whole{};
    options.restore = path;
    const auto coordinator = Connect(options);
    train(*coordinator, 10, 20);
  }
  // A mesh reads the very same names and types.
  const auto saved = Must(checkpoint::Checkpoint::Open(path));
  const train::Programs programs =
      Must(train::BuildPrograms(recipe(), types[0].first, types[0].second));
  const mesh::Mesh mesh = mesh::Mesh::Parse("batch=2,model=2").value();
  for (const Parameter& p : programs.States()) {
    const auto value =
        saved->LoadLocal(p.name(), mesh::Layout::Replicated(mesh, p.type().rank()), 3);
    ASSERT_TRUE(value.ok()) << value.status().ToString();
    EXPECT_EQ(value->type(), p.type()) << p.name();
  }
  EXPECT_EQ(saved->index().variables.size(), programs.States().size());
}

TEST(CoordinatorTest, AMeshsCheckpointBeginsTheServers) {
  const TempFolder folder;
  const std::pair<TensorType, TensorType> types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
  const auto recipe = [] {
    return DigitsRecipe(train::Adam({.common = {.learning_rate = 0.002}}));
  };
  const std::vector<double> want =
      Must(TrainAlone(recipe(), DigitsData(50, 2000, false), types[0].first, types[0].second, 12));
  std::map<std::string, Tensor> states;
  ASSERT_TRUE(
      TrainAlone(recipe(), DigitsData(50, 2000, false), types[0].first, types[0].second, 8, &states)
          .ok());
  checkpoint::Snapshot snapshot{.step = 8};
  for (const auto& [name, value] : states) {
    // Cut otherwise than the servers do.
    checkpoint::SavedVariable variable{name, value.type(), "", {}};
    if (value.dims().size() == 2) {
      const int64_t half = value.dims()[1] / 2;
      variable.blocks.push_back({{0, 0}, value.Slice({0, 0}, {value.dims()[0], half})});
      variable.blocks.push_back(
          {{0, half}, value.Slice({0, half}, {value.dims()[0], value.dims()[1] - half})});
    } else {
      variable.blocks.push_back({mesh::Dims(value.dims().size(), 0), value});
    }
    snapshot.variables.push_back(std::move(variable));
  }
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  options.restore = Must(checkpoint::Save(folder.path() + "/checkpoints", snapshot));
  const auto coordinator = Connect(options);
  const Training training = Must(coordinator->DefineTraining(recipe(), types));
  const PerWorker data =
      Must(coordinator->CreatePerWorkerDataset("train", DigitsData(50, 2000, false)));
  for (int skip = 0; skip < 8; ++skip) {
    ASSERT_TRUE(coordinator->Fetch(Must(coordinator->Schedule(training.evaluate, {data}))).ok());
  }
  for (size_t i = 8; i < 12; ++i) {
    const Outputs outputs =
        Must(coordinator->Fetch(Must(coordinator->Schedule(training.step, {data}))));
    ASSERT_NEAR(LossOf(outputs), want[i], 1e-6) << "step " << i;
  }
}

}  // namespace
}  // namespace meshtrain::parameter
