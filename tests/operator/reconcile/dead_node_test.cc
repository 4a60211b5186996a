// Pods on a node that is silent or gone: when they are deleted by force.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

JobBuilder Patient(int64_t seconds) {
  return MakeJob("mnist").Workers(1).With(
      [=](api::TrainingJob& job) { job.spec.run_policy.dead_node_seconds = seconds; });
}

TEST(NodeTest, ASilentNodeIsGivenTheTimeThatTheUserSays) {
  Scene scene(Patient(300));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  pod.node_state = NodeState::kNotReady;
  pod.node_not_ready_since = At(50);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(349), Not(HasSubstr("delete")));
  EXPECT_EQ(scene.last.wake_at, At(350));
  EXPECT_THAT(scene.Look(350), HasSubstr("force-delete pod mnist-worker-0\n"));
  scene.job.spec.run_policy.dead_node_seconds = 9'999'999'999;
  EXPECT_THAT(scene.Look(1e8), Not(HasSubstr("delete")));
}

// Cut off, the old process may live on and write where the new one would.
TEST(NodeTest, WithoutTheUsersWordNothingOnASilentNodeIsReplaced) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  pod.node_state = NodeState::kNotReady;
  pod.node_not_ready_since = At(50);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(100), HasSubstr("warn NodeNotReady: mnist-worker-0 is on the node node-1, "
                                         "which is not ready: it is replaced when"));
  EXPECT_EQ(scene.Look(1e6), "") << "however long";
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
  // The taint controller asks for its deletion, which its node does not answer either.
  pod.delete_requested = At(400);
  pod.delete_due = At(430);
  pod.delete_seen = At(400);
  scene.Pod(pod);
  for (const double at : {500.0, 600.0, 1e6, 2e6}) {
    EXPECT_THAT(scene.Look(at), Not(HasSubstr("delete pod")));
    EXPECT_THAT(ToString(scene.last), Not(HasSubstr("create pod"))) << at;
  }
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "NodeNotReady");
  for (const auto known : {NodeState::kGone, NodeState::kOutOfService}) {
    Scene told = scene;
    told.seen.pods[0].node_state = known;
    EXPECT_THAT(told.Look(2e6 + 1), HasSubstr("force-delete pod mnist-worker-0\n"));
  }
}

TEST(NodeTest, APodStuckTerminatingIsReplacedWithoutAViewOfNodesOnlyByTheUsersWord) {
  Scene scene(Patient(300));
  PodSeen pod = MakePod(scene.Running().job, kWorker0);
  // The API server's clock is an hour ahead of the operator's: only its durations count.
  pod.delete_requested = At(3610);
  pod.delete_due = At(3640);
  pod.delete_seen = At(10);
  scene.Pod(pod);
  EXPECT_THAT(scene.Look(11), Not(HasSubstr("delete pod"))) << "its node answers";
  scene.seen.pods[0].node_state = NodeState::kUnseen;  // an operator that may not read nodes
  EXPECT_THAT(scene.Look(339), Not(HasSubstr("delete pod")));
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "PodDoesNotEnd");
  EXPECT_THAT(scene.Look(340), HasSubstr("force-delete pod mnist-worker-0\n"));
  Scene unsaid = scene;
  unsaid.job.spec.run_policy.dead_node_seconds.reset();
  EXPECT_THAT(unsaid.Look(1e6), Not(HasSubstr("delete pod")));
  Scene cannot_say = scene;
  cannot_say.seen.pods[0].delete_seen.reset();
  EXPECT_THAT(cannot_say.Look(1e6), Not(HasSubstr("delete pod"))) << "nor may times be mixed";
}

// A finalizer keeps the object of a pod that was deleted by force.
TEST(NodeTest, AForcedDeletionIsAskedForOnce) {
  Scene scene(MakeJob("mnist").Workers(1).Clean(api::kCleanAll));
  scene.Running();
  scene.seen.pods[0].node_state = NodeState::kGone;
  EXPECT_THAT(scene.Look(10), HasSubstr("force-delete pod mnist-worker-0\n"));
  scene.seen.pods[0].delete_requested = scene.seen.pods[0].delete_due = At(10);
  scene.seen.pods[0].delete_seen = At(10);
  EXPECT_EQ(scene.Look(11), "");
  EXPECT_THAT(scene.Look(71), HasSubstr("warn PodDoesNotEnd: mnist-worker-0 should have ended"));
  // Nor by what follows a suspension, or an end.
  scene.job.spec.run_policy.suspend = true;
  EXPECT_THAT(scene.Look(80), Not(HasSubstr("delete pod")));
  EXPECT_EQ(scene.Look(90), "");
  scene.status().conditions[ConditionType::kFailed] = {.status = true, .reason = "PodFailed"};
  scene.status().completion_time = At(90);
  EXPECT_THAT(scene.Look(95), Not(HasSubstr("delete pod")));
}

}  // namespace
}  // namespace meshtrain::reconcile
