// tests/support/lifecycle_cases played over values: pods end as the table says, and what is decided
// is carried out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operator/reconcile/scene.h"
#include "tests/support/lifecycle_cases.h"

namespace meshtrain::reconcile {
namespace {

using testing_support::LifecycleCase;

class CasesTest : public ::testing::TestWithParam<LifecycleCase> {
 protected:
  static PodSeen* Find(Scene* scene, cluster::TaskId task) {
    for (PodSeen& pod : scene->seen.pods) {
      if (pod.task == task) return &pod;
    }
    return nullptr;
  }

  // Restarts are paced; all of them come within so long.
  static void Follow(Scene* scene, double* now) {
    for (int i = 0; i < 6; ++i) {
      scene->Look(*now += 301);
      scene->Obey();
    }
  }
};

TEST_P(CasesTest, ComesToItsEnd) {
  const LifecycleCase& c = GetParam();
  Scene scene(testing_support::MakeJob("mnist").With([&](api::TrainingJob& job) { job = c.job; }));
  double now = 100;
  if (c.refused) {
    scene.Look(0);
    scene.seen.refused = RefusedWrite{.what = "claim", .reason = "Refused", .message = "no room"};
    scene.Look(now);
  } else {
    scene.Running();
  }
  for (const auto& end : c.ends) {
    ASSERT_EQ(scene.status().phase, "Running");
    PodSeen* pod = Find(&scene, end.task);
    ASSERT_NE(pod, nullptr) << cluster::ToString(end.task);
    const std::string& policy = c.job.spec.replica_specs.at(end.task.role).restart_policy;
    if (policy == api::kRestartAlways || (policy == api::kRestartOnFailure && end.exit_code != 0)) {
      ++pod->restart_count;
      pod->termination_message =
          end.lost.empty() ? "" : R"({"step":1,"lostIncarnation":")" + end.lost + "\"}";
      pod->last_exit_code = end.exit_code;
    } else {
      PodSeen ended = EndedPod(scene.job, end.task, end.exit_code);
      ended.uid = pod->uid;
      ended.attempt = pod->attempt;
      ended.restart_count = pod->restart_count;
      ended.last_exit_code = pod->last_exit_code;
      ended.finished = At(now);
      *pod = std::move(ended);
    }
    Follow(&scene, &now);
  }
  if (c.suspended) {
    ASSERT_EQ(scene.status().phase, "Running");
    scene.job.spec.run_policy.suspend = true;
    Follow(&scene, &now);
    EXPECT_TRUE(scene.seen.pods.empty());
  }
  EXPECT_EQ(scene.status().phase, c.phase);
  int of_phase = 0;
  for (const auto& [type, condition] : scene.status().conditions) {
    if (!condition.status || api::ConditionName(type) != c.phase) continue;
    ++of_phase;
    if (!c.reason.empty()) {
      EXPECT_EQ(condition.reason, c.reason);
    }
    EXPECT_THAT(condition.message, ::testing::StartsWith(c.message));
  }
  EXPECT_EQ(of_phase, 1) << c.phase;
  EXPECT_EQ(scene.status().restarts, c.restarts);
  std::set<cluster::TaskId> kept;
  for (const PodSeen& pod : scene.seen.pods) {
    if (pod.phase == PodPhase::kSucceeded || pod.phase == PodPhase::kFailed) kept.insert(*pod.task);
  }
  EXPECT_EQ(kept, c.kept);
  if (c.phase == "Running") {
    EXPECT_EQ(Find(&scene, c.ends.back().task)->attempt, c.attempt);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, CasesTest, ::testing::ValuesIn(testing_support::LifecycleCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshtrain::reconcile
