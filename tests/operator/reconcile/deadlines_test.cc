// Deadlines of a job: for the time that it is active, and for its first start.
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using api::ConditionType;

TEST(DeadlineTest, ActiveTimeIsCountedWithoutSuspensions) {
  Scene scene(MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.active_deadline_seconds = 100; }));
  scene.Running();
  EXPECT_EQ(scene.last.wake_at, At(100));
  scene.job.spec.run_policy.suspend = true;
  scene.Look(60);
  scene.Obey();
  scene.job.spec.run_policy.suspend = false;
  scene.Look(1000);
  scene.Obey();
  scene.Look(1002);
  EXPECT_EQ(scene.last.wake_at, At(1040));
  scene.Look(1039);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.Look(1040);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "DeadlineExceeded");
}

TEST(DeadlineTest, StartupEndsWhenTheJobFirstRuns) {
  const auto builder = MakeJob("mnist").Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.startup_deadline_seconds = 30; });
  Scene late(builder);
  late.Look(0);
  EXPECT_EQ(late.last.wake_at, At(30));
  late.Look(30);
  EXPECT_EQ(late.Reason(ConditionType::kFailed), "StartupDeadlineExceeded");
  // Nobody looked between its pods' start and the deadline: an upgrade, an API server away.
  Scene unseen(builder);
  unseen.Look(0);
  unseen.Obey();
  unseen.Look(311);
  EXPECT_EQ(unseen.status().phase, "Running");
  Scene soon(builder);
  soon.Running();
  soon.Gone(kWorker0);
  soon.Look(100);
  soon.Look(200);
  EXPECT_EQ(soon.status().phase, "Restarting") << "a restart is no start";
  // A failure before the job ever ran does not lift the deadline.
  Scene never(MakeJob("mnist").Chief().Workers(1).With(
      [](api::TrainingJob& job) { job.spec.run_policy.startup_deadline_seconds = 30; }));
  never.Look(0);
  never.Obey();
  for (PodSeen& pod : never.seen.pods) pod.phase = PodPhase::kPending;
  never.Pod(EndedPod(never.job, kWorker0, 138));
  never.Look(10);
  never.Obey();
  never.Look(11);
  EXPECT_EQ(never.status().phase, "Restarting");
  never.Look(30);
  EXPECT_EQ(never.Reason(ConditionType::kFailed), "StartupDeadlineExceeded");
}

// What people write for "never".
TEST(DeadlineTest, OneBeyondNanosecondsIsFarAway) {
  Scene scene(MakeJob("mnist").Workers(1).With([](api::TrainingJob& job) {
    job.spec.run_policy.active_deadline_seconds = 9'999'999'999;
    job.spec.run_policy.startup_deadline_seconds = INT64_MAX;
    job.spec.run_policy.progress_deadline_seconds = INT64_MAX;
    job.spec.run_policy.backoff_limit = 1;
    job.spec.run_policy.backoff_window_seconds = INT64_MAX;
  }));
  scene.Look(0);
  EXPECT_EQ(scene.last.wake_at, At(INT32_MAX));
  scene.Obey();
  scene.Look(1e8);
  EXPECT_EQ(scene.status().phase, "Running");
  scene.status().active_seconds_before = 1e300;
  scene.Look(1e8 + 1);
  EXPECT_EQ(scene.Reason(ConditionType::kFailed), "DeadlineExceeded");
}

}  // namespace
}  // namespace meshtrain::reconcile
