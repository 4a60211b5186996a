// A suspension deletes the pods; a resumed job starts a new attempt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;
using ::testing::HasSubstr;

TEST(LifecycleTest, SuspendDeletesPodsAndResumeStartsAnew) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running();
  scene.job.spec.run_policy.suspend = true;
  EXPECT_EQ(scene.Look(20),
            "patch status Suspended Created=JobCreated Suspended=JobSuspended\n"
            "delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"
            "tell JobSuspended: the job is suspended\n");
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
  EXPECT_EQ(scene.status().start_time, std::nullopt);
  EXPECT_EQ(scene.status().active_seconds_before, 20);
  scene.Obey();
  EXPECT_EQ(scene.Look(30), "patch status Suspended Created=JobCreated Suspended=JobSuspended\n")
      << "counts";
  EXPECT_EQ(scene.Look(40), "");
  scene.job.spec.run_policy.suspend = false;
  EXPECT_EQ(scene.Look(100),
            "patch status Pending Created=JobCreated\n"
            "create pod mnist-chief-0 (attempt 1)\ncreate pod mnist-worker-0 (attempt 1)\n"
            "tell JobResumed: the job is resumed\n");
  EXPECT_EQ(scene.status().start_time, At(100));
  scene.Obey();
  scene.Look(102);
  EXPECT_TRUE(scene.Is(ConditionType::kRunning));
}

TEST(LifecycleTest, WhatPodsDidBeforeASuspensionDoesNotCountAfterIt) {
  Scene scene(MakeJob("mnist").Chief().Workers(1));
  scene.Running().Pod(EndedPod(scene.job, kWorker0, 1));
  scene.job.spec.run_policy.suspend = true;
  scene.Look(20);
  scene.job.spec.run_policy.suspend = false;
  EXPECT_THAT(scene.Look(21), HasSubstr("delete pod mnist-chief-0\ndelete pod mnist-worker-0\n"))
      << "seen late";
  EXPECT_FALSE(scene.Is(ConditionType::kFailed));
  EXPECT_FALSE(scene.Is(ConditionType::kRunning));
}

// By the clock of the operator before, it begins in an hour.
TEST(LifecycleTest, AJobThatIsSuspendedBeforeItBeganWasActiveForNoTime) {
  Scene scene(MakeJob("mnist").Workers(1));
  scene.Running();
  scene.job.status.start_time = At(3600);
  scene.job.spec.run_policy.suspend = true;
  scene.Look(100);
  EXPECT_TRUE(scene.Is(ConditionType::kSuspended));
  EXPECT_EQ(scene.status().active_seconds_before, 0);
}

TEST(LifecycleTest, AJobMadeSuspendedMakesNoPods) {
  Scene scene(MakeJob("mnist").Workers(1).Suspended());
  EXPECT_EQ(scene.Look(0),
            "patch status Suspended Created=JobCreated Suspended=JobSuspended\n"
            "tell JobSuspended: the job is suspended\n");
  EXPECT_EQ(scene.Look(9), "");
}

}  // namespace
}  // namespace meshtrain::reconcile
