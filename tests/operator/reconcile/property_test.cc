// What holds for any job and any world: the order of lists does not matter, the same input gives
// the same bytes, and nothing is decided that the rules forbid.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "operator/api/json.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

uint64_t Seed() {
  const char* given = std::getenv("MT_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 4711;
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Once(int n) { return Below(n) == 0; }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

Scene AnyScene(Dice* dice) {
  auto builder = MakeJob("any");
  if (dice->Once(2)) builder.Chief();
  builder.Workers(1 + dice->Below(4));
  if (dice->Once(3)) builder.Ps(1 + dice->Below(2), api::kRestartOnFailure);
  if (dice->Once(4)) builder.Evaluator(api::kRestartNever);
  if (dice->Once(3)) builder.Backoff(dice->Below(3));
  const std::string_view clean[] = {api::kCleanAll, api::kCleanRunning, api::kCleanNone};
  builder.Clean(clean[dice->Below(3)]);
  Scene scene(builder);
  if (!dice->Once(5)) scene.Running();
  if (dice->Once(8)) scene.job.spec.run_policy.suspend = true;
  if (dice->Once(6)) {
    scene.job.spec.replica_specs[cluster::Role::kWorker].replicas = 1 + dice->Below(5);
  }
  for (PodSeen& pod : scene.seen.pods) {
    switch (dice->Below(12)) {
      case 0:
        pod.phase = PodPhase::kFailed;
        pod.exit_code = dice->Below(160);
        break;
      case 1:
        pod.phase = PodPhase::kSucceeded;
        pod.exit_code = 0;
        break;
      case 2:
        pod.delete_requested = At(5);
        pod.delete_due = At(35);
        break;
      case 3:
        pod.node_state = dice->Once(2) ? NodeState::kGone : NodeState::kNotReady;
        pod.node_not_ready_since = At(dice->Below(500));
        break;
      case 4:
        pod.controller_uid = dice->Once(2) ? "another" : "";
        break;
      case 5:
        pod.matches_selector = false;
        break;
      case 6:
        pod.phase = PodPhase::kPending;
        pod.waiting_reason = "Unschedulable";
        break;
      case 7:
        pod.reason = "Evicted";
        pod.phase = PodPhase::kFailed;
        break;
      case 8:
        pod.task.reset();
        break;
      default:
        break;
    }
  }
  if (dice->Once(4) && !scene.seen.pods.empty()) scene.seen.pods.pop_back();
  return scene;
}

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
