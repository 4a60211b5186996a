#include "tests/operator/reconcile/scene.h"

#include <algorithm>
#include <cstdlib>

#include "operator/reconcile/children.h"

namespace meshtrain::reconcile {

Scene::Scene(const JobBuilder& builder) : job(builder.Build()) {}

Scene& Scene::Running() {
  Look(0);
  Obey();
  Look(2);
  return *this;
}

Scene& Scene::Pod(PodSeen pod) {
  const auto found = std::find_if(seen.pods.begin(), seen.pods.end(),
                                  [&](const PodSeen& p) { return p.name == pod.name; });
  if (found == seen.pods.end()) {
    seen.pods.push_back(std::move(pod));
  } else {
    if (pod.attempt == 0) pod.attempt = found->attempt;
    if (pod.cluster.empty()) pod.cluster = found->cluster;
    *found = std::move(pod);
  }
  return *this;
}

Scene& Scene::Gone(cluster::TaskId task) {
  std::erase_if(seen.pods, [&](const PodSeen& pod) { return pod.task == task; });
  return *this;
}

std::string Scene::Look(double at) {
  last = Reconcile(job, seen, At(at));
  std::string out;
  for (const Action& action : last.actions) {
    if (const auto* patch = std::get_if<PatchStatus>(&action.write)) {
      job.status = patch->status;
      job.metadata.resource_version = std::to_string(std::stoi(job.metadata.resource_version) + 1);
    }
    out += ToString(action.write) + "\n";
  }
  return out;
}

Scene& Scene::Obey() {
  std::string cluster;  // formatted once for many pods
  for (const Action& action : last.actions) {
    if (const auto* w = std::get_if<CreateService>(&action.write)) {
      seen.services.push_back(
          {.name = w->name, .uid = "uid-" + w->name, .controller_uid = job.metadata.uid});
    } else if (const auto* w = std::get_if<DeleteService>(&action.write)) {
      std::erase_if(seen.services,
                    [&](const ServiceSeen& s) { return s.name == w->name && s.uid == w->uid; });
    } else if (const auto* w = std::get_if<CreatePod>(&action.write)) {
      PodSeen pod = MakePod(job, w->task);
      pod.attempt = w->attempt;
      pod.uid += "-" + std::to_string(w->attempt);
      if (cluster.empty()) cluster = ClusterStamp(job, seen.settings);
      pod.cluster = cluster;
      Pod(pod);
    } else if (const auto* w = std::get_if<DeletePod>(&action.write)) {
      std::erase_if(seen.pods,
                    [&](const PodSeen& pod) { return pod.name == w->name && pod.uid == w->uid; });
    } else if (std::holds_alternative<CreatePodGroup>(action.write)) {
      seen.pod_group =
          PodGroupSeen{.uid = "pg",
                       .controller_uid = job.metadata.uid,
                       .phase = "Inqueue",
                       .min_member = static_cast<int32_t>(api::TotalReplicas(job.spec))};
    } else if (std::holds_alternative<DeletePodGroup>(action.write)) {
      seen.pod_group.reset();
    }
  }
  return *this;
}

std::string Scene::Reason(api::ConditionType type) const {
  const auto found = job.status.conditions.find(type);
  return found == job.status.conditions.end() ? "" : found->second.reason;
}

uint64_t Seed() {
  const char* given = std::getenv("MT_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 4711;
}

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

}  // namespace meshtrain::reconcile
