// Containers that the kubelet restarts in their pod: how they count toward RESTARTS and budgets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::Not;

// The kubelet restarts a pod's container once more; with 138 it may say which incarnation was lost.
void InPlace(Scene* scene, cluster::TaskId task, int code, const std::string& lost = "") {
  for (PodSeen& pod : scene->seen.pods) {
    if (pod.task != task) continue;
    ++pod.restart_count;
    pod.last_exit_code = code;
    pod.termination_message = lost.empty() ? "" : R"({"step":5,"lostIncarnation":")" + lost + "\"}";
  }
}

TEST(RestartTest, BackoffLimitCountsRecreationsAndContainersRestartedInPlace) {
  Scene scene(MakeJob("mnist").Chief().Workers(2, api::kRestartOnFailure).Backoff(2));
  scene.Running();
  for (PodSeen& pod : scene.seen.pods) {
    if (pod.task == kWorker0) pod.restart_count = 2, pod.last_exit_code = 1;
  }
  scene.Look(50);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.Look(60);
  EXPECT_EQ(scene.status().restarts, 2);
  PodSeen pod = EndedPod(scene.job, kWorker1, 1);
  scene.Pod(pod);
  scene.Look(70);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

TEST(RestartTest, EachRestartInPlaceCountsOnceAsBatchV1Counts) {
  Scene scene(
      MakeJob("mnist").Chief(api::kRestartOnFailure).Workers(3, api::kRestartOnFailure).Backoff(9));
  scene.Running();
  // All at the same moment, and with the same code: that alone makes them no one incident.
  for (const auto task : {kChief, kWorker0, kWorker1, kWorker2}) InPlace(&scene, task, 138);
  scene.Look(50);
  scene.Look(60);
  EXPECT_EQ(scene.status().restarts, 4);
  EXPECT_EQ(scene.status().replica_statuses[Role::kWorker].restarts, 3);
}

TEST(RestartTest, EachIncidentThatAllLeaveWith138CountsOnceInWhateverOrderTheyAreSeen) {
  Scene scene(MakeJob("mnist").Workers(8, api::kRestartOnFailure).Backoff(5));
  scene.Running();
  double at = 50;
  for (int incident = 1; incident <= 3; ++incident) {
    for (int i = 0; i < 8; ++i) {
      InPlace(&scene, {Role::kWorker, (i * 3 + incident) % 8}, 138,
              "lost-" + std::to_string(incident));
      scene.Look(at += 6);
      EXPECT_EQ(scene.status().restarts, incident) << "after " << i + 1 << " pods";
    }
  }
  // What a rank does alone is its own, before and after it joins the next incident.
  InPlace(&scene, kWorker1, 1);
  InPlace(&scene, kWorker1, 1);
  scene.Look(at += 6);
  EXPECT_EQ(scene.status().restarts, 5);
  EXPECT_EQ(scene.status().phase, "Running");
  for (int i = 0; i < 8; ++i) {
    InPlace(&scene, {Role::kWorker, i}, 138, "lost-4");
    scene.Look(at += 6);
  }
  EXPECT_EQ(scene.status().restarts, 6);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

TEST(RestartTest, WhatWasJoinedStaysJoinedHoweverManyIncarnationsFollow) {
  Scene scene(MakeJob("mnist").Workers(4, api::kRestartOnFailure));
  scene.Running();
  double at = 50;
  for (int incident = 1; incident <= 20; ++incident) {
    for (int i = 0; i < 4; ++i) {
      InPlace(&scene, {Role::kWorker, i}, 138, "lost-" + std::to_string(incident));
    }
    scene.Look(at += 6);
    EXPECT_EQ(scene.status().restarts, incident);
  }
  EXPECT_EQ(scene.status().recovery.in_place.lost.size(), api::kMaxLost);
}

TEST(RestartTest, AnIncidentOfSeveralRolesCountsOnceForTheJobAndOnceForEach) {
  Scene scene(MakeJob("mnist").Chief(api::kRestartOnFailure).Workers(2, api::kRestartOnFailure));
  scene.Running();
  for (const char* lost : {"one", "two"}) {
    for (const auto task : {kChief, kWorker0, kWorker1}) InPlace(&scene, task, 138, lost);
    scene.Look(60);
  }
  scene.Look(70);
  EXPECT_EQ(scene.status().restarts, 2);
  EXPECT_EQ(scene.status().replica_statuses[Role::kChief].restarts, 2);
  EXPECT_EQ(scene.status().replica_statuses[Role::kWorker].restarts, 2);
}

TEST(RestartTest, RestartsInPlaceCountWithinAWindow) {
  const auto window = [](api::TrainingJob& job) {
    job.spec.run_policy.backoff_window_seconds = 600;
  };
  Scene loops(MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).With(window));
  loops.Running();
  for (const double at : {100, 200, 300}) {
    EXPECT_EQ(loops.status().phase, "Running");
    InPlace(&loops, kWorker1, 1);
    loops.Look(at);
  }
  EXPECT_EQ(loops.Reason(ConditionType::kFailed), "BackoffLimitExceeded");

  Scene slow(MakeJob("mnist").Workers(2, api::kRestartOnFailure).Backoff(2).With(window));
  slow.Running();
  for (int i = 1; i <= 10; ++i) {
    InPlace(&slow, kWorker1, 1);
    slow.Look(400 * i);
  }
  EXPECT_EQ(slow.status().phase, "Running") << "never three within ten minutes";
  EXPECT_EQ(slow.status().restarts, 10);

  Scene role(
      MakeJob("mnist").Chief().Workers(2, api::kRestartOnFailure).With([](api::TrainingJob& job) {
        job.spec.replica_specs[Role::kWorker].restart_budget =
            api::RestartBudget{.limit = 1, .window_seconds = 600};
      }));
  role.Running();
  for (const double at : {100, 200}) {
    InPlace(&role, kWorker0, 1);
    role.Look(at);
  }
  EXPECT_EQ(role.Reason(ConditionType::kFailed), "RestartBudgetExceeded");
}

TEST(RestartTest, RestartsInPlaceStayCountedWhenTheirPodsGo) {
  const auto restarted = [](std::string_view all) {
    Scene scene(MakeJob("mnist")
                    .Chief()
                    .Workers(3, api::kRestartOnFailure)
                    .With([&](api::TrainingJob& job) {
                      job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 3};
                      if (!all.empty()) {
                        job.spec.failure_rules = {
                            {.roles = {Role::kChief}, .action = std::string(all)}};
                      }
                    }));
    scene.Running();
    for (int i = 0; i < 2; ++i) InPlace(&scene, kWorker2, 1);
    for (const char* lost : {"one", "two"}) {
      for (int i = 0; i < 3; ++i) InPlace(&scene, {Role::kWorker, i}, 138, lost);
      scene.Look(lost[0] == 'o' ? 54 : 60);
    }
    EXPECT_EQ(scene.status().restarts, 4);
    return scene;
  };
  const auto settle = [](Scene* scene, double at) {
    for (int i = 0; i < 6; ++i) {
      scene->Look(at + 301 * i);
      scene->Obey();
    }
  };
  Scene all = restarted(api::kActionRestartAll);
  all.Pod(EndedPod(all.job, kChief, 138));
  settle(&all, 100);
  EXPECT_EQ(all.status().phase, "Running");
  EXPECT_EQ(all.status().restarts, 4 + 1);
  EXPECT_EQ(all.status().replica_statuses[Role::kWorker].restarts, 4);
  InPlace(&all, kWorker0, 138);
  settle(&all, 3000);
  EXPECT_EQ(all.status().restarts, 4 + 1 + 1) << "and those of the new pods come on top";

  Scene lost = restarted("");
  lost.Gone(kWorker2);
  settle(&lost, 100);
  EXPECT_EQ(lost.status().restarts, 4 + 1);

  Scene suspended = restarted("");
  suspended.job.spec.run_policy.suspend = true;
  settle(&suspended, 100);
  EXPECT_EQ(suspended.status().restarts, 4);
  suspended.job.spec.run_policy.suspend = false;
  settle(&suspended, 3000);
  EXPECT_EQ(suspended.status().restarts, 4);

  Scene scaled = restarted("");
  scaled.job.spec.replica_specs[Role::kWorker].replicas = 2;
  scaled.job.spec.elastic->max_replicas = 2;
  settle(&scaled, 61);
  EXPECT_EQ(scaled.status().restarts, 4);

  // Not on record yet, for it is written every five seconds only: before a pod goes it is.
  InPlace(&scaled, kWorker0, 1);
  scaled.Pod(EndedPod(scaled.job, kChief, 138));
  EXPECT_THAT(scaled.Look(2000), ::testing::StartsWith("patch status"));
  EXPECT_EQ(scaled.status().restarts, 4 + 1 + 1);
}

}  // namespace
}  // namespace meshtrain::reconcile
