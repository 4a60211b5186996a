// Whose success is the job's, and when it is on record.
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;

TEST(LifecycleTest, SucceedsWithItsChief) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Clean(api::kCleanRunning));
  scene.Running().Pod(EndedPod(scene.job, kChief, 0));
  EXPECT_EQ(scene.Look(50),
            "patch status Succeeded Created=JobCreated Succeeded=JobSucceeded\n"
            "tell JobSucceeded: mnist-chief-0 has succeeded\n");
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().completion_time, At(50));
  EXPECT_EQ(scene.status().replica_statuses.at(cluster::Role::kWorker).succeeded, 1)
      << "as TFJob: what ran was not needed";
  EXPECT_EQ(scene.Look(51), "delete pod mnist-worker-0\n");
  scene.Obey();
  EXPECT_EQ(scene.Look(60), "") << "and never runs again";
  scene.Gone(kChief);
  EXPECT_EQ(scene.Look(61), "");
}

TEST(LifecycleTest, WithoutAChiefWorkerZeroDecides) {
  Scene scene(MakeJob("mnist").Workers(2));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, kWorker0, 0));
  scene.Look(60);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, AllWorkersWaitsForAllOfThemAndTheChief) {
  Scene scene(MakeJob("mnist").Chief().Workers(2).With(
      [](api::TrainingJob& job) { job.spec.success_policy = "AllWorkers"; }));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 0)).Pod(EndedPod(scene.job, kWorker1, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(51);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, MayWaitForTheEvaluator) {
  const cluster::TaskId evaluator{cluster::Role::kEvaluator, 0};
  Scene scene(MakeJob("mnist").Chief().Evaluator().With(
      [](api::TrainingJob& job) { job.spec.wait_for_evaluator = true; }));
  scene.Running().Pod(EndedPod(scene.job, kChief, 0));
  scene.Look(50);
  EXPECT_FALSE(scene.Is(ConditionType::kSucceeded));
  scene.Pod(EndedPod(scene.job, evaluator, 0));
  scene.Look(51);
  EXPECT_TRUE(scene.Is(ConditionType::kSucceeded));
}

TEST(LifecycleTest, ALeaderThatIsToldToStopAndLeavesWithZeroHasNotSucceeded) {
  Scene scene(MakeJob("mnist").Workers(1));
  PodSeen pod = EndedPod(scene.Running().job, kWorker0, 0);
  pod.delete_requested = At(40);
  // Its node's clock may be an hour behind the API server's: the times say nothing.
  for (const double ended : {50.0, 50.0 - 3600, 30.0}) {
    Scene again = scene;
    pod.finished = At(ended);
    again.Pod(pod);
    again.Look(51);
    EXPECT_FALSE(again.Is(ConditionType::kSucceeded)) << ended;
    EXPECT_TRUE(again.Is(ConditionType::kRestarting));
  }
  // Seen before anybody deleted it, its success is on record and stays.
  Scene done(MakeJob("mnist").Workers(1));
  pod = EndedPod(done.Running().job, kWorker0, 0);
  done.Pod(pod);
  done.Look(55);
  pod.delete_requested = At(55);
  done.Pod(pod);
  done.Look(56);
  EXPECT_TRUE(done.Is(ConditionType::kSucceeded));
}

}  // namespace
}  // namespace meshtrain::reconcile
