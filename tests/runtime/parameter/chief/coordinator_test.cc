// The whole strategy over real gRPC, servers and workers as threads of this process.
// (processes_test.cc kills processes.)
#include "runtime/parameter/chief/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/chief/coordinator_testing.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/jobs_testing.h"
#include "tests/runtime/parameter/must.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using program::Value;
using std::chrono::seconds;

TEST(CoordinatorTest, OneStepAtATimeIsTheGuidesSeries) {
  const GuideSeries guide = ReadGuide();
  ASSERT_EQ(guide.losses.size(), 210u);
  TestCluster cluster(2, 1);
  CoordinatorOptions options = cluster.options();
  options.partitioner = FixedShards{2};
  const auto coordinator = Connect(options);
  const train::Recipe recipe = GuideRecipe(guide.w0);
  const BatchTypes types[] = {{F32({5, 1}), F32({5, 1})}};
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
  const BatchTypes types[] = {{F32({5, 1}), F32({5, 1})}};
  const Training training = Must(coordinator->DefineTraining(GuideRecipe(guide.w0), types));
  const PerWorker data = Must(coordinator->CreatePerWorkerDataset("train", GuideData()));
  ASSERT_TRUE(WaitForWorkers(*coordinator, 3));
  for (size_t i = 0; i < 210; ++i) {
    const RemoteValue value = Must(coordinator->Schedule(training.step, {data}));
    ASSERT_NEAR(LossOf(Must(coordinator->Fetch(value, {}, seconds(60)))), guide.losses[i], 1e-6)
        << "step " << i;
  }
  EXPECT_THAT(coordinator->stats().worker_steps, ::testing::ElementsAre(70, 70, 70));
}

TEST(CoordinatorTest, OneStepAtATimeIsTheSingleProcess) {
  TestCluster cluster(2, 1);
  CoordinatorOptions options = cluster.options();
  options.partitioner = MinSize{4096, 3};
  options.seed = 11;
  const auto coordinator = Connect(options);
  const BatchTypes types[] = {{F32({100, 28, 28}), {DType::kI32, {100}}}};
  const auto optimizer = [] {
    return train::Adam({.common = {.learning_rate = 0.003, .clipnorm = 0.5}});
  };
  std::map<std::string, Tensor> want_states;
  const std::vector<double> want = Must(TrainAlone(DigitsRecipe(optimizer()), DigitsData(100),
                                                   types[0][0], types[0][1], 30, &want_states));
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
  const BatchTypes types[] = {{F32({50, 28, 28}), {DType::kI32, {50}}}};
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
  const BatchTypes types[] = {{F32({5, 1}), F32({5, 1})}, {F32({2, 1}), F32({2, 1})}};
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

}  // namespace
}  // namespace meshtrain::parameter
