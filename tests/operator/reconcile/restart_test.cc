// Pods that are created again: what is one incident, how many the budgets allow, and how long the
// next attempt waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using cluster::Role;
using ::testing::HasSubstr;

// Fails a replica, and lets the operator bring it back.
void FailAndRecover(Scene* scene, cluster::TaskId task, int code, double at,
                    std::string_view reason = "") {
  PodSeen pod = EndedPod(scene->job, task, code, reason);
  for (const PodSeen& before : scene->seen.pods) {
    if (before.task == task) {
      pod.uid = before.uid;
      pod.attempt = before.attempt;
    }
  }
  scene->Pod(pod);
  scene->Look(at);
  for (int i = 0; i < 4; ++i) {
    scene->Obey();
    scene->Look(at + 301 + i);
  }
}

TEST(RestartTest, OutOfMemoryTwiceInARowIsPermanent) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  FailAndRecover(&scene, kWorker1, 137, 100, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running");
  FailAndRecover(&scene, kWorker0, 137, 1000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running") << "another replica's first";
  FailAndRecover(&scene, kWorker1, 137, 2000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Failed");
  EXPECT_EQ(scene.status().conditions[ConditionType::kFailed].message,
            "mnist-worker-1 failed with exit code 137 (OOMKilled), the second time in a row");
}

TEST(RestartTest, OutOfMemoryWithAnotherEndBetweenIsNotInARow) {
  Scene scene(MakeJob("mnist").Chief().Workers(2));
  scene.Running();
  FailAndRecover(&scene, kWorker1, 137, 100, "OOMKilled");
  FailAndRecover(&scene, kWorker1, 138, 2000);
  FailAndRecover(&scene, kWorker1, 137, 4000, "OOMKilled");
  EXPECT_EQ(scene.status().phase, "Running");
}

TEST(RestartTest, OneIncidentCountsOnceHoweverManyRanksLeave) {
  Scene scene(MakeJob("mnist").Chief().Workers(3).Backoff(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker1, 137));
  scene.Look(50);
  EXPECT_EQ(scene.status().recovery.counted, 1);
  // The survivors give up two minutes later, one after the other.
  scene.Pod(EndedPod(scene.job, kChief, 138)).Pod(EndedPod(scene.job, kWorker0, 138));
  EXPECT_THAT(
      scene.Look(170),
      HasSubstr(
          "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"));
  scene.Obey();
  scene.Pod(EndedPod(scene.job, kWorker2, 138));
  scene.Look(171);
  scene.Obey();
  scene.Look(172);
  scene.Obey();
  scene.Look(175);
  EXPECT_EQ(scene.status().phase, "Running");
  EXPECT_EQ(scene.status().recovery.counted, 1);
}

TEST(RestartTest, APodOfTheNewAttemptThatFailsIsANewIncident) {
  Scene scene(MakeJob("mnist").Chief().Workers(1).Backoff(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 138));
  scene.Look(50);
  scene.Obey();
  scene.Look(51);
  scene.Obey();
  PodSeen again = EndedPod(scene.job, kWorker0, 138);
  again.attempt = 1;
  again.uid = "new";
  for (PodSeen& pod : scene.seen.pods) {
    if (pod.task == kChief) pod.phase = PodPhase::kFailed, pod.exit_code = 138;
  }
  scene.Pod(again);
  scene.Look(52);
  EXPECT_EQ(scene.status().phase, "Failed");
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
  EXPECT_EQ(scene.status().conditions[ConditionType::kFailed].message,
            "mnist-worker-0 failed with exit code 138 (Error), after 1 restarts, which "
            "runPolicy.backoffLimit allows");
}

// Made again by the operator: the incident was over when the last of them left.
TEST(RestartTest, PodsThatLeaveWith138ForTheSameIncarnationCountOnceTogether) {
  const auto leaves = [](Scene* scene, cluster::TaskId task, const char* lost) {
    PodSeen pod = EndedPod(scene->job, task, 138);
    pod.termination_message = std::string(R"({"step":5,"lostIncarnation":")") + lost + "\"}";
    for (const PodSeen& before : scene->seen.pods) {
      if (before.task == task) pod.uid = before.uid, pod.attempt = before.attempt;
    }
    scene->Pod(pod);
  };
  Scene scene(MakeJob("mnist").Chief().Workers(2).Backoff(1));
  scene.Running();
  double at = 100;
  for (const auto task : {kWorker0, kWorker1, kChief}) {
    leaves(&scene, task, "feed");
    scene.Look(at);
    for (int i = 0; i < 3; ++i) {
      scene.Obey();
      scene.Look(at + 10 * (i + 1));
    }
    EXPECT_EQ(scene.status().phase, "Running");
    EXPECT_EQ(scene.status().recovery.counted, 1);
    at += 1000;
  }
  EXPECT_EQ(scene.status().restarts, 1);
  EXPECT_EQ(scene.status().recovery.attempt, 3) << "each was made again";
  leaves(&scene, kWorker0, "beef");
  scene.Look(at);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "BackoffLimitExceeded") << "another loss";
}

TEST(RestartTest, BudgetsOfARoleAndOfAWindow) {
  Scene role(MakeJob("mnist").Chief().Workers(2).With([](api::TrainingJob& job) {
    job.spec.replica_specs[Role::kWorker].restart_budget = api::RestartBudget{.limit = 1};
  }));
  role.Running();
  FailAndRecover(&role, kChief, 138, 100);
  FailAndRecover(&role, kWorker0, 138, 1000);
  EXPECT_EQ(role.status().phase, "Running");
  FailAndRecover(&role, kWorker1, 138, 2000);
  EXPECT_EQ(role.Reason(ConditionType::kFailed), "RestartBudgetExceeded");

  Scene window(MakeJob("mnist").Chief().Workers(2).Backoff(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.backoff_window_seconds = 600; }));
  window.Running();
  for (const double at : {1000, 2000, 3000, 4000}) FailAndRecover(&window, kWorker1, 138, at);
  EXPECT_EQ(window.status().phase, "Running") << "never two within ten minutes";
  FailAndRecover(&window, kWorker1, 138, 4310);
  EXPECT_EQ(window.Reason(ConditionType::kFailed), "BackoffLimitExceeded");
}

TEST(RestartTest, RepeatedRestartsWaitLongerAndLonger) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  std::vector<double> waits;
  double at = 100;
  for (int i = 0; i < 5; ++i) {
    PodSeen pod = EndedPod(scene.job, kWorker0, 138);
    pod.attempt = scene.status().recovery.attempt;
    pod.uid = "u" + std::to_string(i);
    scene.Gone(kWorker0).Pod(pod);
    scene.Look(at);
    scene.Obey();
    double wait = 0;
    while (scene.Look(at + wait).find("create pod") == std::string::npos && wait < 400) wait += 1;
    waits.push_back(wait);
    scene.Obey();
    at += wait + 1;
    scene.Look(at);
  }
  EXPECT_THAT(waits, ::testing::ElementsAre(0, 5, 10, 20, 40));
}

TEST(RestartTest, AWaitBetweenRestartsSaysWhatItFollows) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  for (int i = 0; i < 2; ++i) {
    PodSeen pod = EndedPod(scene.job, kWorker0, 1);
    pod.attempt = scene.status().recovery.attempt;
    pod.uid = "u" + std::to_string(i);
    pod.exit_code.reset();
    pod.reason = "UnexpectedAdmissionError";
    scene.Gone(kWorker0).Pod(pod);
    scene.Look(100 + i);
    scene.Obey();
    scene.Look(100 + i);
    if (i == 0) scene.Obey();
  }
  EXPECT_EQ(scene.Reason(ConditionType::kWaiting), "RestartBackoff");
  EXPECT_THAT(scene.status().conditions.at(ConditionType::kWaiting).message,
              HasSubstr("after the last failure: mnist-worker-0 was disrupted "
                        "(UnexpectedAdmissionError)"));
  EXPECT_THAT(scene.status().what_to_do, HasSubstr("device plugin"));
}

// Clocks of two operators may differ: a restart on record that lies ahead holds nothing back.
TEST(RestartTest, ALeaderWhoseClockIsBehindDoesNotWaitForTheOtherOnes) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  for (const double at : {3600.0, 3700.0}) FailAndRecover(&scene, kWorker0, 138, at);
  PodSeen pod = EndedPod(scene.job, kWorker0, 138);
  pod.attempt = scene.status().recovery.attempt;
  scene.Gone(kWorker0).Pod(pod);
  scene.Look(4010);
  scene.Obey();
  EXPECT_THAT(scene.Look(410), HasSubstr("create pod mnist-worker-0")) << scene.last.rests;
  EXPECT_THAT(scene.Look(411), HasSubstr("create pod")) << "and counts are not held back either";
}

}  // namespace
}  // namespace meshtrain::reconcile
