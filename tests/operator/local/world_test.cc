#include "operator/local/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshtrain::local {
namespace {

using reconcile::PodPhase;
using reconcile::PodSeen;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TaskId kWorker0{cluster::Role::kWorker, 0};
constexpr TaskId kWorker1{cluster::Role::kWorker, 1};

TimePoint At(double s) {
  return TimePoint(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(1'000'000 + s)));
}

class WorldTest : public ::testing::Test {
 protected:
  std::string Add(TaskId task, std::string_view policy = api::kRestartNever, double at = 0) {
    auto uid = world_.AddPod({.name = cluster::PodName("mnist", task),
                              .task = task,
                              .attempt = 2,
                              .restart_policy = std::string(policy),
                              .grace = seconds(30)},
                             At(at));
    EXPECT_TRUE(uid.ok());
    return *uid;
  }
  // A word and the pod's task: "start worker-0".
  std::vector<std::string> Orders(double at) {
    std::vector<std::string> out;
    for (const Order& order : world_.TakeOrders(At(at))) {
      std::string word = "end";
      if (order.kind == Order::Kind::kStart) word = "start";
      if (order.kind == Order::Kind::kKill) word = "kill";
      const PodSeen* pod = world_.Find(order.uid);
      out.push_back(word + " " + (pod == nullptr ? "?" : cluster::ToString(*pod->task)));
    }
    return out;
  }
  const PodSeen& Pod(TaskId task = kWorker0) { return *world_.Find(task); }

  World world_{"job-uid"};
};

TEST_F(WorldTest, APodIsSeenAsReconcileLooksForIt) {
  const std::string uid = Add(kWorker1, api::kRestartNever, 0.7);
  EXPECT_EQ(Pod(kWorker1).name, "mnist-worker-1");
  EXPECT_EQ(Pod(kWorker1).controller_uid, "job-uid");
  EXPECT_EQ(Pod(kWorker1).attempt, 2);
  EXPECT_EQ(Pod(kWorker1).created, At(0)) << "in whole seconds, as in a cluster";
  EXPECT_EQ(Pod(kWorker1).phase, PodPhase::kPending);
  EXPECT_EQ(world_.AddPod({.name = "mnist-worker-1", .task = kWorker1}, At(1)).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(world_.AddService("mnist"));
  EXPECT_FALSE(world_.AddService("mnist"));
  const reconcile::Observed seen = world_.Observe();
  ASSERT_EQ(seen.pods.size(), 1u);
  EXPECT_EQ(seen.pods[0].uid, uid);
  EXPECT_EQ(seen.services,
            (std::vector<reconcile::ServiceSeen>{{.name = "mnist", .controller_uid = "job-uid"}}));
}

TEST_F(WorldTest, StartsInTheOrderOfTasksAndOnce) {
  Add(kWorker1);
  Add(kWorker0);
  EXPECT_EQ(world_.next_order(), At(0));
  EXPECT_THAT(Orders(0), ElementsAre("start worker-0", "start worker-1"));
  EXPECT_THAT(Orders(1), IsEmpty());
  EXPECT_EQ(world_.next_order(), std::nullopt);
  EXPECT_EQ(Pod().phase, PodPhase::kRunning);
  EXPECT_TRUE(Pod().ready);
}

struct EndCase {
  std::string name;
  std::string_view policy;
  int code;
  PodPhase want;  // kRunning: it is brought back in place
};
class EndTest : public WorldTest, public ::testing::WithParamInterface<EndCase> {};
TEST_P(EndTest, EndsAsItsPolicySays) {
  const std::string uid = Add(kWorker0, GetParam().policy);
  Orders(0);
  world_.Ended(uid, {.code = GetParam().code, .message = "last words"}, At(5));
  EXPECT_EQ(Pod().phase, GetParam().want);
  EXPECT_FALSE(Pod().ready);
  if (GetParam().want == PodPhase::kRunning) {
    EXPECT_EQ(Pod().exit_code, std::nullopt);
    EXPECT_EQ(Pod().restart_count, 0) << "counted when it is started again, and told with that";
    EXPECT_EQ(Pod().last_exit_code, std::nullopt);
    EXPECT_THAT(Orders(5), ElementsAre("start worker-0")) << "the first time at once";
    EXPECT_EQ(Pod().restart_count, 1);
    EXPECT_EQ(Pod().last_exit_code, GetParam().code);
    EXPECT_EQ(Pod().termination_message, "last words");
    EXPECT_TRUE(Pod().ready);
  } else {
    EXPECT_EQ(Pod().exit_code, GetParam().code);
    EXPECT_EQ(Pod().exit_reason, GetParam().code == 0 ? "Completed" : "Error");
    EXPECT_EQ(Pod().finished, At(5));
    EXPECT_THAT(Orders(500), IsEmpty());
  }
}
const EndCase kEnds[] = {
    {"NeverZero", api::kRestartNever, 0, PodPhase::kSucceeded},
    {"NeverOne", api::kRestartNever, 1, PodPhase::kFailed},
    {"OnFailureZero", api::kRestartOnFailure, 0, PodPhase::kSucceeded},
    {"OnFailureOne", api::kRestartOnFailure, 1, PodPhase::kRunning},
    {"AlwaysZero", api::kRestartAlways, 0, PodPhase::kRunning},
    {"AlwaysOne", api::kRestartAlways, 1, PodPhase::kRunning},
};
INSTANTIATE_TEST_SUITE_P(Policies, EndTest, ::testing::ValuesIn(kEnds),
                         [](const auto& i) { return i.param.name; });

TEST_F(WorldTest, ACrashLoopWaitsAsAKubeletDoes) {
  const std::string uid = Add(kWorker0, api::kRestartAlways);
  std::vector<double> waits;
  double now = 0;
  Orders(now);
  for (int i = 0; i < 8; ++i) {
    now += 1;
    world_.Ended(uid, {.code = 1}, At(now));
    const double wait = std::chrono::duration<double>(*world_.next_order() - At(now)).count();
    EXPECT_EQ(Pod().waiting_reason, wait > 0 ? "CrashLoopBackOff" : "");
    waits.push_back(wait);
    if (wait > 0) {
      EXPECT_THAT(Orders(now + wait - 0.5), IsEmpty());
    }
    now += wait;
    EXPECT_THAT(Orders(now), ElementsAre("start worker-0"));
    EXPECT_EQ(Pod().waiting_reason, "");
  }
  EXPECT_THAT(waits, ElementsAre(0, 10, 20, 40, 80, 160, 300, 300));
  EXPECT_EQ(Pod().restart_count, 8);
  now += 601;
  world_.Ended(uid, {.code = 1}, At(now));
  EXPECT_EQ(world_.next_order(), At(now)) << "a long run is forgiven";
}

TEST_F(WorldTest, DeletionAsksThenKillsThenLetsGo) {
  const std::string uid = Add(kWorker0, api::kRestartAlways);
  Orders(0);
  world_.DeletePod("mnist-worker-0", "another uid", std::nullopt, At(10));
  EXPECT_THAT(Orders(10), IsEmpty());
  world_.DeletePod("mnist-worker-0", uid, std::nullopt, At(10));
  EXPECT_EQ(Pod().delete_requested, At(10));
  EXPECT_EQ(Pod().delete_due, At(40));
  EXPECT_EQ(world_.next_order(), At(10));
  EXPECT_THAT(Orders(10), ElementsAre("end worker-0"));
  EXPECT_EQ(world_.next_order(), At(40));
  EXPECT_THAT(Orders(39), IsEmpty());
  EXPECT_THAT(Orders(40), ElementsAre("kill worker-0"));
  EXPECT_EQ(world_.next_order(), std::nullopt);
  EXPECT_THAT(Orders(41), IsEmpty());
  world_.Ended(uid, {.code = 137}, At(42));
  EXPECT_TRUE(world_.empty()) << "and is not brought back";
}

TEST_F(WorldTest, AskedAgainOnlyAShorterTimeCounts) {
  const std::string uid = Add(kWorker0);
  Orders(0);
  world_.DeletePod("mnist-worker-0", uid, seconds(20), At(10));
  Orders(10);
  world_.DeleteAll(std::nullopt, At(12));
  EXPECT_EQ(Pod().delete_due, At(30));
  EXPECT_EQ(Pod().delete_requested, At(10));
  world_.DeleteAll(Duration{}, At(13));
  EXPECT_THAT(Orders(13), ElementsAre("kill worker-0"));
}

TEST_F(WorldTest, WhatDoesNotRunGoesAtOnce) {
  const std::string ended = Add(kWorker0);
  Orders(0);
  world_.Ended(ended, {.code = 1}, At(1));
  world_.DeletePod("mnist-worker-0", ended, std::nullopt, At(2));
  EXPECT_TRUE(world_.empty());
  Add(kWorker0);
  world_.DeleteWaiting(At(3));
  EXPECT_TRUE(world_.empty());
  const std::string crashed = Add(kWorker0, api::kRestartAlways);
  Orders(4);
  world_.DeleteWaiting(At(4));
  EXPECT_FALSE(world_.empty()) << "it runs";
  world_.Ended(crashed, {.code = 1}, At(5));
  world_.DeleteWaiting(At(5));
  EXPECT_TRUE(world_.empty());
}

}  // namespace
}  // namespace meshtrain::local
