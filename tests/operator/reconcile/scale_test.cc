// Another number of replicas: what is created and deleted, and when all pods restart together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LifecycleTest, ScalesUpAndDownTouchingOnlyWhatChanges) {
  // Beside parameter servers each worker knows itself and the servers only.
  Scene scene(MakeJob("mnist").Chief().Workers(2).Ps(1).With([](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
    job.spec.strategy = api::kStrategyParameterServer;
  }));
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 4;
  EXPECT_EQ(scene.Look(20),
            "patch status Running Created=JobCreated Running=JobRunning\n"
            "create pod mnist-worker-2 (attempt 0)\ncreate pod mnist-worker-3 (attempt 0)\n");
  EXPECT_EQ(scene.status().ready, "4/6");
  scene.Obey();
  scene.Look(30);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning)) << "it ran all along";
  EXPECT_EQ(scene.status().ready, "6/6");
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 1;
  EXPECT_THAT(
      scene.Look(40),
      HasSubstr(
          "delete pod mnist-worker-1\ndelete pod mnist-worker-2\ndelete pod mnist-worker-3\n"));
  scene.Obey();
  scene.Look(50);
  EXPECT_EQ(scene.Look(60), "");
  EXPECT_EQ(scene.status().recovery, api::Recovery{});
}

TEST(LifecycleTest, APodThatScalingTookIsNoLoss) {
  Scene scene(MakeJob("mnist").Chief().Workers(4).Ps(1).With([](api::TrainingJob& job) {
    job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
    job.spec.strategy = api::kStrategyParameterServer;
  }));
  scene.Running();
  auto& workers = scene.job.spec.replica_specs[cluster::Role::kWorker].replicas;
  workers = 2;
  scene.Look(20);
  scene.Gone({cluster::Role::kWorker, 3});
  for (PodSeen& pod : scene.seen.pods) {
    if (pod.name == "mnist-worker-2") pod.delete_requested = At(20);  // it takes its time
  }
  workers = 4;
  scene.Look(21);
  scene.Look(22);
  EXPECT_FALSE(scene.Is(ConditionType::kRestarting)) << scene.status().phase;
  EXPECT_EQ(scene.status().recovery, api::Recovery{});
}

TEST(LifecycleTest, ServicesOfReplicasThatAreWantedNoMoreGo) {
  Scene scene(MakeJob("mnist").Workers(3).With([](api::TrainingJob& job) {
    job.spec.tf_config_compat = "kubeflow-v1";
    job.spec.elastic = api::Elastic{1, 5};
  }));
  scene.Running();
  ASSERT_EQ(scene.seen.services.size(), 4u);
  // Under names that no replica can have, or of somebody else: not ours to delete.
  scene.seen.services.push_back(
      {.name = "dashboard", .uid = "u1", .controller_uid = scene.job.metadata.uid});
  scene.seen.services.push_back(
      {.name = "mnist-worker-7", .uid = "u2", .controller_uid = "another"});
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 2;
  EXPECT_THAT(scene.Look(20), ::testing::HasSubstr("delete service mnist-worker-2\n"));
  scene.Obey();
  EXPECT_THAT(scene.Look(21), ::testing::Not(::testing::HasSubstr("service")));
}

// Every process is told all the others, so none may run beside one that was told another set.
TEST(ClusterTest, AChangeOfTheClusterRestartsAllTogether) {
  for (const int workers : {4, 1}) {
    Scene scene(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
      job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 8};
    }));
    scene.Running();
    scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = workers;
    const std::string did = scene.Look(20);
    EXPECT_THAT(did, ::testing::StartsWith(
                         "patch status Restarting Created=JobCreated Restarting=ClusterChanged"));
    EXPECT_THAT(did, HasSubstr("delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"
                               "delete pod mnist-worker-1\n"));
    EXPECT_THAT(did, Not(HasSubstr("create pod"))) << "before the last has ended";
    EXPECT_THAT(did,
                HasSubstr("warn ClusterChanged: the set of processes changed: all pods restart "
                          "together"));
    // Two have ended, one takes its time.
    PodSeen slow = scene.seen.pods[0];
    slow.delete_requested = At(20);
    slow.delete_due = At(50);
    scene.seen.pods = {slow};
    EXPECT_THAT(scene.Look(25), Not(HasSubstr("create pod")));
    EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "FormerProcesses");
    scene.seen.pods.clear();
    EXPECT_THAT(scene.Look(30), HasSubstr("create pod mnist-chief-0 (attempt 1)\n"));
    scene.Obey();
    scene.Look(33);
    EXPECT_EQ(scene.status().phase, "Running");
    EXPECT_EQ(scene.status().restarts, 0) << "the user's wish is no failure";
    EXPECT_EQ(scene.Look(60), "");
  }
}

TEST(ClusterTest, PodsOfBeforeASuspensionThatNobodySawDoNotMeetThoseAfterIt) {
  // Suspended, scaled and resumed while the operator was away.
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 3;
  const std::string did = scene.Look(20);
  EXPECT_THAT(did, HasSubstr("delete pod mnist-chief-0\n"));
  EXPECT_THAT(did, Not(HasSubstr("create pod")));
}

}  // namespace
}  // namespace meshtrain::reconcile
