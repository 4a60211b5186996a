// Workers and servers that are late, go and come back, or never come.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/base/file.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/runtime/parameter/chief/coordinator_testing.h"
#include "tests/runtime/parameter/cluster_testing.h"
#include "tests/runtime/parameter/full_disk.h"
#include "tests/runtime/parameter/must.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::parameter {
namespace {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Builder;
using std::chrono::seconds;
using testing_folder::TempFolder;

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

// The step was run again and again, applied each time where there was room, and nobody was told.
TEST(CoordinatorTest, AServerWhoseDiskIsFullEndsTheJobAndTheStepCountsOnce) {
  const TempFolder folder;
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.return_timeout = seconds(3);
  const auto coordinator = Connect(options);
  ASSERT_NE(coordinator, nullptr);
  const Parameter large("v", TensorType{DType::kI64, {4096}}, nn::Initializer::Zeros(),
                        {.trainable = false});
  const std::vector<Parameter> variables = {Counter(), large};  // one on each
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  Builder b("count");
  {
    Builder::Scope scope(b);
    program::AssignAdd(Counter(), 1);
    program::AssignAdd(large, program::Ones({4096}, DType::kI64));
  }
  const Function count = Must(coordinator->DefineFunction(b.Build().value()));
  const auto run = [&] {
    const auto scheduled = coordinator->Schedule(count, {});
    return scheduled.ok() ? coordinator->Join({}, seconds(60)) : scheduled.status();
  };
  ASSERT_TRUE(run().ok());
  Status full;
  {
    const FullDisk disk(std::filesystem::file_size(folder.path() + "/ps-1/push-00000001.log") +
                        1000);
    full = run();
  }
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.ToString();
  EXPECT_EQ(full.origin(), Origin::kOutput);
  EXPECT_NE(full.message().find("worker-0: ps-1: "), std::string::npos) << full.message();
  EXPECT_NE(full.message().find("push-00000001.log: cannot write"), std::string::npos)
      << full.message();
  EXPECT_EQ(coordinator->stats().steps_rerun, 0);
  EXPECT_EQ(Must(coordinator->Read("n")).Item(), 2);
  EXPECT_EQ(Must(coordinator->Read("v")).values<int64_t>()[0], 1);
  // Whoever makes room may go on.
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(Must(coordinator->Read("n")).Item(), 3);
  EXPECT_EQ(Must(coordinator->Read("v")).values<int64_t>()[0], 2);
}

// It was said that the server had not answered in time, which is a lost server's error.
TEST(CoordinatorTest, WhatAServersDiskRefusesIsTriedForAWhileAndThenTheDisksError) {
  const TempFolder folder;
  TestCluster cluster(1, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.checkpoint_folder = folder.path() + "/checkpoints";
  options.return_timeout = seconds(1);
  const auto coordinator = Connect(options);
  const std::vector<Parameter> variables = {Counter()};
  Status defined, cut;
  {
    const FullDisk disk(10);
    defined = coordinator->CreateVariables(variables);
    cut = coordinator->Save(1);
  }
  for (const Status& refused : {defined, cut}) {
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
    EXPECT_EQ(refused.origin(), Origin::kOutput);
    EXPECT_NE(refused.message().find("ps-0: "), std::string::npos) << refused.message();
    EXPECT_NE(refused.message().find("File too large"), std::string::npos) << refused.message();
  }
  const Status created = coordinator->CreateVariables(variables);
  EXPECT_TRUE(created.ok()) << created.ToString();
  const Status saved = coordinator->Save(1);
  EXPECT_TRUE(saved.ok()) << saved.ToString();
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
  EXPECT_EQ(error.code(), StatusCode::kUnavailable) << error.ToString();
  EXPECT_EQ(error.origin(), Origin::kPeers) << "another attempt may do better";
  EXPECT_EQ(error.message().find("ps-0: expected term "), 0u) << error.message();
}

// It refused to start, for ever, so that no coordinator could begin anew.
TEST(CoordinatorTest, AServerWhoseLogIsDamagedServesTheNextCoordinator) {
  const TempFolder folder;
  TestCluster cluster(1, 1, folder.path());
  const std::vector<Parameter> variables = {Counter()};
  auto coordinator = Connect(cluster.options());
  ASSERT_TRUE(coordinator->CreateVariables(variables).ok());
  const Function count = Must(coordinator->DefineFunction(CountStep()));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(coordinator->Schedule(count, {}).ok());
  ASSERT_TRUE(coordinator->Join({}, seconds(60)).ok());
  cluster.StopServer(0);
  const std::string log = folder.path() + "/ps-0/push-00000001.log";
  std::string bytes = Must(ReadFile(log));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  ASSERT_TRUE(WriteFileAtomically(log, bytes).ok());
  cluster.StartServer(0);
  const auto next = coordinator->Schedule(count, {});
  const Status lost = next.ok() ? coordinator->Join({}, seconds(60)) : next.status();
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable) << lost.ToString();
  EXPECT_NE(lost.message().find("got: term 0"), std::string::npos) << lost.message();
  coordinator = Connect(cluster.options());
  ASSERT_NE(coordinator, nullptr);
  EXPECT_TRUE(coordinator->CreateVariables(variables).ok());
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
  options.term = 100;
  const auto old = Connect(options);
  const std::vector<Parameter> variables = {Counter()};
  ASSERT_TRUE(old->CreateVariables(variables).ok());
  options.term = 101;
  const auto next = Connect(options);
  EXPECT_EQ(old->Read("n").status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(next->CreateVariables(variables).ok());
  EXPECT_TRUE(next->Read("n").ok());
  options.term = 99;
  EXPECT_EQ(Coordinator::Create(options).status().code(), StatusCode::kFailedPrecondition);
}

// A chief that is made again on another node is no less the newest for that node's clock.
TEST(CoordinatorTest, ASuccessorWhoseClockIsBehindIsNotTakenForOneThatWasReplaced) {
  const TempFolder folder;
  TestCluster cluster(2, 1, folder.path());
  CoordinatorOptions options = cluster.options();
  options.term = std::chrono::duration_cast<std::chrono::microseconds>(
                     (SystemClock().Now() + std::chrono::minutes(4)).time_since_epoch())
                     .count();
  const std::vector<Parameter> variables = {Counter()};
  {
    const auto first = Connect(options);
    ASSERT_NE(first, nullptr);
    ASSERT_TRUE(first->CreateVariables(variables).ok());
    ASSERT_TRUE(WaitForWorkers(*first, 1));
  }
  // A server that comes back knows it by its log.
  cluster.StopServer(1);
  cluster.StartServer(1);
  const int64_t before = std::exchange(options.term, 0);
  const auto next = Connect(options);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->term(), before + 1);
  ASSERT_TRUE(next->CreateVariables(variables).ok());
  const Function count = Must(next->DefineFunction(CountStep()));
  ASSERT_TRUE(next->Schedule(count, {}).ok());
  const Status joined = next->Join({}, seconds(60));
  EXPECT_TRUE(joined.ok()) << joined.ToString();
}

}  // namespace
}  // namespace meshtrain::parameter
