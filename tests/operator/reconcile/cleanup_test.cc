// What is deleted after the end of a job: its pods by cleanPodPolicy, the job itself by its TTL.
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

struct CleanCase {
  std::string name;
  std::string_view policy;
  bool fails;
  std::string want;
};
class CleanTest : public ::testing::TestWithParam<CleanCase> {};
TEST_P(CleanTest, DeletesWhatThePolicySays) {
  const CleanCase& c = GetParam();
  Scene scene(MakeJob("mnist").Chief().Workers(2).Clean(c.policy));
  scene.Running().Pod(EndedPod(scene.job, kChief, c.fails ? 1 : 0));
  PodSeen pending = MakePod(scene.job, kWorker1, PodPhase::kPending);
  scene.Pod(pending);
  scene.Look(50);
  ASSERT_TRUE(api::IsFinished(scene.job.status));
  EXPECT_EQ(scene.Look(51), c.want);
}
const CleanCase kClean[] = {
    {"All", api::kCleanAll, false,
     "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"Running", api::kCleanRunning, false,
     "delete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"NoneKeepsAllButPodsThatNeverRan", api::kCleanNone, false, "delete pod mnist-worker-1\n"},
    {"AllAfterAFailure", api::kCleanAll, true,
     "delete pod mnist-chief-0\ndelete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
    {"RunningAfterAFailure", api::kCleanRunning, true,
     "delete pod mnist-worker-0\ndelete pod mnist-worker-1\n"},
};
INSTANTIATE_TEST_SUITE_P(Policies, CleanTest, ::testing::ValuesIn(kClean),
                         [](const auto& i) { return i.param.name; });

TEST(LifecycleTest, TtlDeletesTheJob) {
  for (const int64_t ttl : {0, 30}) {
    Scene scene(MakeJob("mnist").Workers(1).With(
        [&](api::TrainingJob& job) { job.spec.run_policy.ttl_seconds_after_finished = ttl; }));
    scene.Running().Pod(EndedPod(scene.job, kWorker0, 0));
    scene.Look(50);
    if (ttl > 0) {
      EXPECT_EQ(scene.Look(60), "");
      EXPECT_EQ(scene.last.wake_at, At(80));
    }
    EXPECT_EQ(scene.Look(50 + static_cast<double>(ttl)), "delete job\n");
  }
  // For ever, as people write it.
  Scene kept(MakeJob("mnist").Workers(1).With([](api::TrainingJob& job) {
    job.spec.run_policy.ttl_seconds_after_finished = 9'999'999'999;
  }));
  kept.Running().Pod(EndedPod(kept.job, kWorker0, 0));
  kept.Look(50);
  EXPECT_EQ(kept.Look(1e8), "");
}

}  // namespace
}  // namespace meshtrain::reconcile
