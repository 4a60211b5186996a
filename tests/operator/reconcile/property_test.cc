// What holds for any job and any world: the order of lists does not matter, the same input gives
// the same bytes, and nothing is decided that the rules forbid.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "operator/api/json.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

TEST(PropertyTest, OrderOfListsDoesNotMatter) {
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(Seed()));
  Dice dice(Seed());
  for (int round = 0; round < 3000; ++round) {
    Scene scene = AnyScene(&dice);
    const Outcome first = Reconcile(scene.job, scene.seen, At(600));
    std::shuffle(scene.seen.pods.begin(), scene.seen.pods.end(), dice.engine());
    std::shuffle(scene.seen.services.begin(), scene.seen.services.end(), dice.engine());
    ASSERT_EQ(Reconcile(scene.job, scene.seen, At(600)), first) << ToString(first);
  }
}

TEST(PropertyTest, DecisionsKeepToTheRules) {
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(Seed()));
  Dice dice(Seed() + 1);
  for (int round = 0; round < 3000; ++round) {
    const Scene scene = AnyScene(&dice);
    const Outcome outcome = Reconcile(scene.job, scene.seen, At(600));
    std::set<std::string> existing;
    for (const PodSeen& pod : scene.seen.pods) existing.insert(pod.name);
    bool decided = false;
    std::set<std::string> touched;
    ASSERT_FALSE(outcome.actions.empty() && outcome.rests.empty());
    for (size_t i = 0; i < outcome.actions.size(); ++i) {
      const Action& action = outcome.actions[i];
      ASSERT_FALSE(action.why.empty()) << ToString(action);
      if (i > 0) {
        ASSERT_LE(outcome.actions[i - 1].phase, action.phase);
      }
      if (const auto* patch = std::get_if<PatchStatus>(&action.write)) {
        ASSERT_FALSE(decided) << "two status writes";
        decided = true;
        ASSERT_EQ(patch->resource_version, scene.job.metadata.resource_version);
        const auto is = [&](api::ConditionType type) { return api::IsTrue(patch->status, type); };
        ASSERT_FALSE(is(api::ConditionType::kSucceeded) && is(api::ConditionType::kFailed));
        ASSERT_FALSE(api::IsFinished(patch->status) && is(api::ConditionType::kRunning));
        // Times have whole seconds, so what is read back equals what was written.
        auto job = scene.job;
        job.status = patch->status;
        ASSERT_EQ(api::FromJson(api::ToJson(job))->status, patch->status);
      }
      if (const auto* pod = std::get_if<CreatePod>(&action.write)) {
        ASSERT_FALSE(existing.contains(pod->name)) << pod->name << " is there";
        ASSERT_TRUE(touched.insert(pod->name).second);
        ASSERT_LT(pod->task.index, api::Replicas(scene.job.spec, pod->task.role));
      }
      if (const auto* gone = std::get_if<DeletePod>(&action.write)) {
        ASSERT_TRUE(touched.insert(gone->name).second) << gone->name << " twice";
        const auto found = std::find_if(scene.seen.pods.begin(), scene.seen.pods.end(),
                                        [&](const PodSeen& pod) { return pod.name == gone->name; });
        ASSERT_NE(found, scene.seen.pods.end());
        ASSERT_EQ(found->uid, gone->uid);
        ASSERT_EQ(found->controller_uid, scene.job.metadata.uid) << "P9";
      }
    }
  }
}

// Obeyed again and again, with all pods well, a world comes to rest.
TEST(PropertyTest, SettlesToAnEmptyOutcome) {
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(Seed()));
  Dice dice(Seed() + 2);
  for (int round = 0; round < 1000; ++round) {
    Scene scene = AnyScene(&dice);
    double at = 600;
    for (int look = 0; look < 12; ++look, at += 400) {
      scene.Look(at);
      scene.Obey();
      for (PodSeen& pod : scene.seen.pods) {  // what other controllers and nodes do meanwhile
        pod.node_state = NodeState::kReady;
        if (pod.phase == PodPhase::kPending) pod.phase = PodPhase::kRunning;
      }
      std::erase_if(scene.seen.pods,
                    [](const PodSeen& pod) { return pod.delete_requested.has_value(); });
    }
    const std::string left = scene.Look(at);
    // A stray or a foreign pod may hold a name for ever; adoption is another's write here.
    const bool held =
        std::any_of(scene.seen.pods.begin(), scene.seen.pods.end(), [&](const PodSeen& pod) {
          return pod.controller_uid != scene.job.metadata.uid || !pod.matches_selector;
        });
    if (!held) {
      ASSERT_EQ(left, "") << scene.status().phase;
    }
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
