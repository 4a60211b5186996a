// Which cluster the processes know. Each is told all the others when its pod is made, and nothing
// tells it of a change, so those that can run at once are told the same: a change of the cluster
// restarts all of them together, and none starts before the last of the former ones has ended.
#include "operator/reconcile/children.h"
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

bool CanRun(const PodSeen& pod) {
  return pod.phase != PodPhase::kSucceeded && pod.phase != PodPhase::kFailed;
}

// Pods are to be made, or to go because they are too many.
bool Changes(const View& view) {
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const TaskId task{role, i};
      if (view.Ours(task) == nullptr && !view.orphans.contains(task)) return true;
    }
  }
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task) && !pod->delete_requested) return true;
  }
  return false;
}

}  // namespace

const PodSeen* KnowsAFormerCluster(const View& view) {
  if (view.ours.empty() || !Changes(view)) return nullptr;
  const std::string wanted = ClusterStamp(view.job, view.seen.settings);
  for (const auto& [task, pod] : view.ours) {
    const bool stays = view.Wanted(task) && !pod->delete_requested && CanRun(*pod) &&
                       pod->attempt >= view.job.status.recovery.restart_all_below;
    if (stays && !pod->cluster.empty() && pod->cluster != wanted) return pod;
  }
  return nullptr;
}

const PodSeen* MayRunStill(const View& view, int32_t restart_all_below,
                           const std::string& cluster) {
  for (const auto& [task, pod] : view.ours) {
    const bool former = !pod->cluster.empty() && pod->cluster != cluster;
    if (CanRun(*pod) && (former || pod->attempt < restart_all_below)) return pod;
  }
  return nullptr;
}

}  // namespace meshtrain::reconcile
