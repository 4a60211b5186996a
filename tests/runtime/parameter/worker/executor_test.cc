// A worker's engine against real servers, without a coordinator.
#include "runtime/parameter/worker/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "runtime/data/cursor.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using std::chrono::seconds;

Parameter Count(const std::string& name) {
  return Parameter(name, TensorType{DType::kI64, {}}, nn::Initializer::Zeros(),
                   {.trainable = false});
}

// Adds `by` to each and gives what the first was; or only reads it.
Program AddStep(const std::vector<Parameter>& counts, bool adds) {
  Builder b(adds ? "add" : "read");
  Builder::Scope scope(b);
  const program::Value by = b.Input("by", {DType::kI64, {}});
  b.Output("before", b.Read(counts[0]) + by * 0.0);
  if (adds) {
    for (const Parameter& count : counts) program::AssignAdd(count, by);
  }
  return b.Build().value();
}

struct Ran {
  Result<RunReply> reply = Internal("not yet");
  std::vector<Tensor> outputs;
};

class ExecutorTest : public ::testing::Test {
 protected:
  // `folder`: as TestCluster's. `memory`: of the worker's session.
  explicit ExecutorTest(const std::vector<Parameter>& variables = {Count("n")},
                        const std::string& folder = "", int64_t memory = 0)
      : cluster_(static_cast<int>(variables.size()), 0, folder),
        planner_(Whole{}, static_cast<int>(variables.size()), 0),
        executor_({.identity = TestIdentity(), .session = {.threads = 1, .memory = memory}}) {
    EXPECT_TRUE(executor_.Start().ok());
    servers_ = ServerGroup::Create(AddressesOf(cluster_.spec(), cluster::Role::kPs).value(),
                                   TestIdentity(), seconds(20))
                   .value();
    EXPECT_TRUE(servers_->SetUp({.term = 1}, seconds(20), {}).ok());
    EXPECT_TRUE(servers_->Define(planner_.AddVariables(variables).value(), seconds(20), {}).ok());
    const WorkerStep add = SplitStep(AddStep(variables, true)).value();
    EXPECT_TRUE(
        servers_->Define(planner_.AddUpdate("add", add.pushed, {}).value(), seconds(20), {}).ok());
    entries_ = {
        planner_.MakeFunction(add, "add", {}).value(),
        planner_.MakeFunction(SplitStep(AddStep(variables, false)).value(), "", {}).value()};
  }

  Status SetUp(int64_t incarnation, int64_t term = 1) {
    std::promise<Status> done;
    executor_.SetUp({term, 0, 1, incarnation,
                     AddressesOf(cluster_.spec(), cluster::Role::kPs).value(), entries_, cursors_},
                    [&](Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  }
  std::future<Ran> Start(int64_t incarnation, int64_t function, int64_t by,
                         int64_t wait_ms = 20000) {
    return Start(RunRequest{1,
                            incarnation,
                            next_step_++,
                            {function},
                            {{RunArgument::Kind::kTensor, 0, {DType::kI64, {}}}},
                            {},
                            wait_ms},
                 by);
  }
  std::future<Ran> Start(RunRequest request, int64_t by) {
    auto promise = std::make_shared<std::promise<Ran>>();
    executor_.Run(std::move(request), {Tensor::Scalar(by)},
                  [promise](Result<RunReply> reply, std::vector<Tensor> outputs) {
                    promise->set_value({std::move(reply), std::move(outputs)});
                  });
    return promise->get_future();
  }
  Ran RunStep(int64_t incarnation, int64_t function, int64_t by, int64_t wait_ms = 20000) {
    return Start(incarnation, function, by, wait_ms).get();
  }
  int64_t CountOf(const std::string& name = "n") {
    return static_cast<int64_t>(
        servers_->Read(planner_.states().at(name), seconds(20), {}).value().Item());
  }

  TestCluster cluster_;
  Planner planner_;
  std::unique_ptr<ServerGroup> servers_;
  std::vector<Entry> entries_;
  std::vector<CursorAt> cursors_;
  int64_t next_step_ = 0;
  Executor executor_;
};

TEST_F(ExecutorTest, ReadsRunsAndPushes) {
  ASSERT_TRUE(SetUp(1).ok());
  EXPECT_EQ(RunStep(1, 0, 5).outputs[0].Item(), 0);
  const Ran second = RunStep(1, 0, 7);
  ASSERT_TRUE(second.reply.ok()) << second.reply.status().ToString();
  EXPECT_EQ(second.outputs[0].Item(), 5);
  EXPECT_EQ(second.reply->versions, std::vector<int64_t>{2});
  EXPECT_EQ(second.reply->outputs[0].name, "before");
  EXPECT_GT(second.reply->pulled_bytes, 0);
  const Ran read = RunStep(1, 1, 0);
  EXPECT_EQ(read.outputs[0].Item(), 12);
  EXPECT_EQ(read.reply->pushed_bytes, 0);
  EXPECT_EQ(RunStep(1, 1, 0).reply->pulled_bytes, 0) << "nothing has changed";
  EXPECT_EQ(CountOf(), 12);
}

TEST_F(ExecutorTest, ManyAtOnceAllCount) {
  ASSERT_TRUE(SetUp(1).ok());
  std::vector<std::future<Ran>> runs;
  for (int i = 0; i < 50; ++i) runs.push_back(Start(1, 0, 1));
  for (auto& run : runs) {
    const Ran ran = run.get();
    ASSERT_TRUE(ran.reply.ok() && ran.reply->status.ok());
  }
  EXPECT_EQ(CountOf(), 50);
}

TEST_F(ExecutorTest, AnEndedIncarnationRunsNothing) {
  EXPECT_EQ(RunStep(1, 0, 1).reply.status().code(), StatusCode::kFailedPrecondition)
      << "not set up yet";
  ASSERT_TRUE(SetUp(2).ok());
  EXPECT_EQ(SetUp(2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(SetUp(5, 0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunStep(1, 0, 1).reply.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(RunStep(2, 0, 1).reply.ok());
  EXPECT_EQ(executor_.Ping().incarnation, 2);
  EXPECT_EQ(CountOf(), 1);
}

TEST_F(ExecutorTest, ANewIncarnationEndsAStepThatWaits) {
  ASSERT_TRUE(SetUp(1).ok());
  cluster_.StopServer(0);
  std::future<Ran> waiting = Start(1, 0, 1, /*wait_ms=*/60000);
  SystemClock().SleepFor(std::chrono::milliseconds(200), {});
  ASSERT_TRUE(SetUp(2).ok());
  const Ran ended = waiting.get();
  EXPECT_FALSE(ended.reply.ok());
  EXPECT_THAT(ended.reply.status().code(),
              ::testing::AnyOf(StatusCode::kCancelled, StatusCode::kFailedPrecondition))
      << ended.reply.status().ToString();
}

TEST_F(ExecutorTest, AServerThatIsAwayIsNamed) {
  ASSERT_TRUE(SetUp(1).ok());
  ASSERT_TRUE(RunStep(1, 0, 1).reply.ok());
  cluster_.StopServer(0);
  const Ran away = RunStep(1, 0, 1, 300);
  ASSERT_TRUE(away.reply.ok()) << away.reply.status().ToString();
  EXPECT_EQ(away.reply->cause, RunReply::Cause::kServerAway);
  EXPECT_EQ(away.reply->status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(away.reply->server, 0);
  EXPECT_EQ(away.reply->status.message().find("ps-0: "), 0u) << away.reply->status.message();
  // Back, but without its state.
  cluster_.StartServer(0);
  Ran lost = RunStep(1, 0, 1, 10000);
  ASSERT_TRUE(lost.reply.ok());
  EXPECT_EQ(lost.reply->cause, RunReply::Cause::kServerAway);
  EXPECT_EQ(lost.reply->status.code(), StatusCode::kFailedPrecondition);
}

class TwoServersTest : public testing_folder::TempFolder, public ExecutorTest {
 protected:
  TwoServersTest() : ExecutorTest({Count("n"), Count("m")}, path()) {}
};

// Run again under a number of its own, it counted twice where it had been acknowledged, and as
// often again as it was tried.
TEST_F(TwoServersTest, WhatOneServerHasOfAStepIsNotAppliedAgainWhenTheOtherIsBack) {
  ASSERT_TRUE(SetUp(1).ok());
  ASSERT_TRUE(RunStep(1, 0, 1).reply->status.ok());
  cluster_.StopServer(1);
  RunRequest request{1, 1, 1, {0}, {{RunArgument::Kind::kTensor, 0, {DType::kI64, {}}}}, {1, 1}};
  for (int attempt = 0; attempt < 3; ++attempt) {
    request.server_wait_ms = 300;
    const Ran returned = Start(request, 10).get();
    ASSERT_TRUE(returned.reply.ok()) << returned.reply.status().ToString();
    EXPECT_EQ(returned.reply->cause, RunReply::Cause::kServerAway);
    EXPECT_EQ(returned.reply->server, 1);
  }
  EXPECT_EQ(CountOf("n"), 11);
  cluster_.StartServer(1);
  // Its number waits for it, whatever other steps push.
  request.server_wait_ms = 20000;
  request.step = 2;
  request.oldest_step = 1;
  EXPECT_TRUE(Start(request, 100).get().reply->status.ok());
  request.step = 1;
  const Ran again = Start(request, 10).get();
  ASSERT_TRUE(again.reply.ok() && again.reply->status.ok()) << again.reply->status.ToString();
  EXPECT_EQ(CountOf("n"), 111);
  EXPECT_EQ(CountOf("m"), 111);

  // One that will not come again is forgotten.
  cluster_.StopServer(1);
  request.step = 3;
  request.server_wait_ms = 300;
  EXPECT_EQ(Start(request, 1000).get().reply->cause, RunReply::Cause::kServerAway);
  cluster_.StartServer(1);
  request.server_wait_ms = 20000;
  request.step = request.oldest_step = 4;
  ASSERT_TRUE(Start(request, 10000).get().reply->status.ok());
  EXPECT_EQ(CountOf("n"), 11111);
  EXPECT_EQ(CountOf("m"), 10111);
}

class SmallWorkerTest : public ExecutorTest {
 protected:
  SmallWorkerTest() : ExecutorTest({Count("n")}, "", /*memory=*/1) {}
};

// It had the code of an incarnation that is over, and so the worker was set up again and again.
TEST_F(SmallWorkerTest, AStepThatNeedsMoreMemoryIsWrongForTheJobAndNotForTheIncarnation) {
  const Status refused = SetUp(1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.ToString();
  EXPECT_EQ(refused.origin(), Origin::kManifest);
  EXPECT_NE(refused.message().find("expected to need at most 1 bytes"), std::string::npos)
      << refused.message();
}

// So had this one.
TEST_F(ExecutorTest, APlaceInOtherDataIsWrongForTheJobAndNotForTheIncarnation) {
  entries_.emplace_back(
      Dataset{"numbers",
              {{data::MemoryArrays{{Tensor::Of<int64_t>({4}, std::vector<int64_t>{1, 2, 3, 4})}}},
               {data::BatchStage{2}}}});
  cursors_ = {{static_cast<int64_t>(entries_.size()) - 1, data::Cursor{1, 0, 0}.ToString()}};
  const Status refused = SetUp(1);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused.ToString();
  EXPECT_EQ(refused.origin(), Origin::kOutput);
  EXPECT_NE(refused.message().find("dataset numbers: data: expected a cursor of this pipeline"),
            std::string::npos)
      << refused.message();
  cursors_.clear();
  ASSERT_TRUE(SetUp(2).ok());
  const Status over = SetUp(1);
  EXPECT_EQ(over.code(), StatusCode::kFailedPrecondition) << over.ToString();
  EXPECT_FALSE(over.origin().has_value()) << OriginName(*over.origin());
}

TEST_F(ExecutorTest, ProgramsThatDoNotFitAreRefused) {
  StepFunction wrong = std::get<StepFunction>(entries_[0]);
  wrong.pulls[0][0].server = 3;
  entries_.emplace_back(wrong);
  EXPECT_EQ(SetUp(1).code(), StatusCode::kInvalidArgument);
  wrong = std::get<StepFunction>(entries_[0]);
  wrong.pushes[0].parts[0].output = 9;
  entries_.back() = wrong;
  EXPECT_EQ(SetUp(2).code(), StatusCode::kInvalidArgument);
  wrong = std::get<StepFunction>(entries_[0]);
  wrong.pulls[0].clear();
  entries_.back() = wrong;
  EXPECT_EQ(SetUp(3).code(), StatusCode::kInvalidArgument);
  entries_.pop_back();
  ASSERT_TRUE(SetUp(4).ok());
  EXPECT_EQ(RunStep(4, 9, 1).reply->status.code(), StatusCode::kInvalidArgument);
  RunRequest request{1, 4, 0, {0}, {{RunArgument::Kind::kDataset, 0, {}}}, {}, 1000};
  std::promise<Ran> done;
  executor_.Run(request, {}, [&](Result<RunReply> reply, std::vector<Tensor> outputs) {
    done.set_value({std::move(reply), std::move(outputs)});
  });
  EXPECT_EQ(done.get_future().get().reply->status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::parameter
