// Who sets what of a status, once: the table that Reconcile's policies keep to, so that their order
// decides nothing (policy.h, Draft).
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "operator/api/json.h"
#include "operator/reconcile/policy.h"
#include "tests/operator/reconcile/scene.h"

namespace meshtrain::reconcile {
namespace {

using nlohmann::json;

// By the fields' names in JSON; conditions by their types.
const std::map<std::string, std::set<Policy>> kSetters = {
    {"recovery.inPlace", {Policy::kRecordInPlace}},
    {"recovery.inPlaceByRole", {Policy::kRecordInPlace}},
    {"recovery.recent", {Policy::kRecordInPlace, Policy::kOpenIncident}},
    {"recovery.attempt", {Policy::kOpenIncident, Policy::kSuspend}},
    {"recovery.restartAllBelow", {Policy::kOpenIncident, Policy::kSuspend}},
    {"recovery.counted", {Policy::kOpenIncident}},
    {"recovery.disruptions", {Policy::kOpenIncident}},
    {"recovery.countedByRole", {Policy::kOpenIncident}},
    {"recovery.incidentsByRole", {Policy::kOpenIncident}},
    {"recovery.outOfMemory", {Policy::kOpenIncident}},
    {"recovery.lostIncarnations", {Policy::kOpenIncident}},
    {"recovery.newestPod", {Policy::kCounts}},
    {"progress", {Policy::kObserveProgress}},
    {"plan", {Policy::kObserveProgress}},
    {"checkpoint", {Policy::kObserveProgress}},
    {"goodput.lostSteps", {Policy::kObserveProgress}},
    {"goodput.waitingSeconds", {Policy::kSuspend, Policy::kTell}},
    {"goodput.restartingSeconds", {Policy::kCloseIncident}},
    {"goodput.runningSeconds", {Policy::kPublish}},
    {"goodput.ratio", {Policy::kPublish}},
    {"startTime", {Policy::kSuspend, Policy::kAccept}},
    {"activeSecondsBefore", {Policy::kSuspend}},
    {"completionTime",
     {Policy::kRefuseManifest, Policy::kSucceed, Policy::kOpenIncident, Policy::kDeadlines}},
    {"Created", {Policy::kSuspend, Policy::kAccept}},
    {"Running", {Policy::kOpenIncident, Policy::kSuspend, Policy::kTell, Policy::kPublish}},
    {"Restarting",
     {Policy::kOpenIncident, Policy::kSuspend, Policy::kCloseIncident, Policy::kPublish}},
    {"Suspended", {Policy::kSuspend, Policy::kPublish}},
    {"Stalled", {Policy::kSuspend, Policy::kWatchForStall, Policy::kPublish}},
    {"Straggling", {Policy::kWatchForStraggler, Policy::kPublish}},
    {"Waiting", {Policy::kPublish}},
    {"Succeeded", {Policy::kSucceed}},
    {"Failed", {Policy::kRefuseManifest, Policy::kOpenIncident, Policy::kDeadlines}},
    {"replicaStatuses", {Policy::kCounts, Policy::kCleanUp}},
    {"ready", {Policy::kCounts}},
    {"restarts", {Policy::kCounts}},
    {"worst", {Policy::kCounts}},
    {"phase", {Policy::kPublish}},
    {"labelSelector", {Policy::kPublish}},
    {"whatToDo", {Policy::kPublish}},
    {"observedGeneration", {Policy::kPublish}},
    {"lastReconcileTime", {Policy::kPublish}},
};

// What may be set twice in one look.
bool MayFollow(const std::string& part, Policy second, bool ended) {
  // A list of what happened, which both append to.
  if (part == "recovery.recent") return second == Policy::kOpenIncident;
  // Whatever was said of a job before its end was known holds no longer.
  static const std::set<std::string> kEnded = {"Running", "Restarting", "Suspended", "Stalled",
                                               "Straggling"};
  return second == Policy::kPublish && ended && kEnded.contains(part);
}

std::map<std::string, json> PartsOf(const api::JobStatus& status) {
  std::map<std::string, json> parts;
  const json all = json::parse(api::StatusToJson(status));
  for (const auto& [name, value] : all.items()) {
    if (name == "conditions") {
      for (const json& condition : value) parts[condition["type"]] = condition;
    } else if (name == "recovery" || name == "goodput") {
      for (const auto& [inner, part] : value.items()) parts[name + "." + inner] = part;
    } else {
      parts[name] = value;
    }
  }
  parts["restarts"] = status.restarts;  // left out of the text as long as nothing else is there
  return parts;
}

// Everything that a scene of pods does not have in it.
void Enrich(Dice* dice, Scene* scene) {
  api::RunPolicy& run = scene->job.spec.run_policy;
  if (dice->Once(3)) run.active_deadline_seconds = 1 + dice->Below(900);
  if (dice->Once(4)) run.startup_deadline_seconds = 1 + dice->Below(900);
  if (dice->Once(4)) run.progress_deadline_seconds = 1 + dice->Below(600);
  if (dice->Once(20)) scene->job.spec.replica_specs.clear();
  for (PodSeen& pod : scene->seen.pods) {
    if (dice->Once(4)) pod.restart_count = dice->Below(4);
    if (dice->Once(6)) {
      pod.exit_code = pod.last_exit_code = 138;
      pod.termination_message = R"({"lostIncarnation":"i)" + std::to_string(dice->Below(2)) + "\"}";
    }
    if (dice->Once(8)) {
      pod.phase = PodPhase::kFailed;
      pod.exit_code = 137;
      pod.exit_reason = "OOMKilled";
    }
    if (dice->Once(8)) pod.waiting_reason = "CrashLoopBackOff";
  }
  if (dice->Once(2)) {
    ProgressSeen seen;
    seen.progress.step = dice->Below(50);
    seen.progress.observed_at = At(300 + dice->Below(300));
    seen.plan = api::PlanStatus{};
    seen.plan->hash = "h";
    seen.checkpoint = api::CheckpointStatus{.step = 3};
    seen.ranks = RankTimes{.slowest = 1, .seconds = 9.0 * dice->Below(2), .median = 1};
    seen.standing_since = At(dice->Below(500));
    if (dice->Once(2)) seen.next_answer = At(dice->Below(500));
    scene->seen.progress = seen;
  }
  if (dice->Once(8)) {
    scene->seen.lost_child =
        LostChild{.what = "secret", .attempt = scene->status().recovery.attempt};
  }
}

TEST(PoliciesTest, EachPartOfTheStatusIsSetOnceByThePolicyThatItBelongsTo) {
  SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(Seed()));
  Dice dice(Seed() + 3);
  std::set<std::pair<std::string, Policy>> seen;
  for (int round = 0; round < 1500; ++round) {
    Scene scene = AnyScene(&dice);
    for (double at = 600; at < 2000; at += 400) {
      Enrich(&dice, &scene);
      if (dice.Once(6)) scene.job.spec.run_policy.suspend = !scene.job.spec.run_policy.suspend;
      std::map<std::string, json> before = PartsOf(scene.status());
      std::set<std::string> set;
      const auto after = [&](Policy policy, const api::JobStatus& next) {
        std::map<std::string, json> parts = PartsOf(next);
        std::set<std::string> names;
        for (const auto& [name, value] : parts) names.insert(name);
        for (const auto& [name, value] : before) names.insert(name);
        for (const std::string& name : names) {
          if (parts[name] == before[name]) continue;
          const auto owner = kSetters.find(name);
          ASSERT_NE(owner, kSetters.end()) << name << " belongs to nobody";
          EXPECT_TRUE(owner->second.contains(policy))
              << name << " is set by policy " << static_cast<int>(policy);
          const bool first = set.insert(name).second;
          EXPECT_TRUE(first || MayFollow(name, policy, api::IsFinished(next)))
              << name << " is set again by policy " << static_cast<int>(policy);
          seen.emplace(name, policy);
        }
        before = std::move(parts);
      };
      scene.last = ReconcilePolicyByPolicy(scene.job, scene.seen, At(at), after);
      ASSERT_EQ(scene.last, Reconcile(scene.job, scene.seen, At(at)));
      if (HasFatalFailure()) return;
      scene.Look(at);
      scene.Obey();
    }
  }
  // A row that never happened shows nothing.
  for (const auto& [part, policies] : kSetters) {
    for (const Policy policy : policies) {
      EXPECT_TRUE(seen.contains({part, policy}))
          << part << " was never set by policy " << static_cast<int>(policy);
    }
  }
}

}  // namespace
}  // namespace meshtrain::reconcile
