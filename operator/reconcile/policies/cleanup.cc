#include <algorithm>

#include "operator/reconcile/policy.h"
#include "runtime/base/time_text.h"

namespace meshtrain::reconcile {

bool Forced(const PodSeen& pod) {
  return pod.delete_requested && pod.delete_due && *pod.delete_requested == *pod.delete_due;
}

void Remove(const View& view, const PodSeen& pod, std::string why, Draft* draft) {
  const bool dead = OnDeadNode(view, pod, draft);
  // Already going: only force helps, once, and only where its node will not answer.
  if (pod.delete_requested && (!dead || Forced(pod))) return;
  draft->Add(Phase::kRemove,
             DeletePod{.name = pod.name,
                       .uid = pod.uid,
                       .grace_seconds = dead ? std::optional<int64_t>(0) : std::nullopt},
             std::move(why));
}

void DeleteOurs(const View& view, Draft* draft, const char* why, bool (*which)(const PodSeen&)) {
  for (const auto& [task, pod] : view.ours) {
    if (pod->delete_requested || which(*pod)) Remove(view, *pod, why, draft);
  }
}

namespace {

bool Live(const PodSeen& pod) {
  return pod.phase != PodPhase::kSucceeded && pod.phase != PodPhase::kFailed;
}

// Counts after the end. Those of a job that succeeded stand as they were recorded; one that failed
// may leave pods running, and they are counted until they end.
void FinalCounts(const View& view, Draft* draft) {
  if (api::IsTrue(draft->next, ConditionType::kSucceeded)) return;
  for (auto& [role, counts] : draft->next.replica_statuses) {
    api::ReplicaStatus now;
    for (const auto& [task, pod] : view.ours) {
      if (task.role != role || !view.Wanted(task)) continue;
      if (pod->phase == PodPhase::kRunning && !pod->delete_requested) ++now.active;
      if (pod->phase == PodPhase::kSucceeded) ++now.succeeded;
      if (pod->phase == PodPhase::kFailed) ++now.failed;
    }
    // Pods that were cleaned away keep the end that they had.
    counts.succeeded = std::max(counts.succeeded, now.succeeded);
    counts.failed = std::max(counts.failed, now.failed);
    counts.active = now.active;
  }
}

}  // namespace

void CleanUp(const View& view, Draft* draft) {
  const api::RunPolicy& policy = view.job.spec.run_policy;
  const auto completed = draft->next.completion_time;
  if (policy.clean_pod_policy == api::kCleanAll) {
    DeleteOurs(view, draft, "the job has ended; cleanPodPolicy is All",
               [](const PodSeen&) { return true; });
  } else if (policy.clean_pod_policy == api::kCleanRunning) {
    // A pending pod would run as soon as it is scheduled.
    DeleteOurs(view, draft, "the job has ended; cleanPodPolicy is Running", Live);
  } else if (completed) {
    for (const auto& [task, pod] : view.ours) {
      // None keeps what people may want to look at. A pod that never ran holds nothing, and
      // starting it now, or one made by a write that was under way when the end was recorded, would
      // run an ended job again.
      const auto& newest = view.job.status.recovery.newest_pod;
      const bool late = Live(*pod) && newest && pod->created > *newest;
      if (pod->delete_requested || !(late || pod->phase == PodPhase::kPending)) continue;
      Remove(view, *pod, "the job ended before it started", draft);
    }
  }
  DeleteGang(view, "the job has ended", draft);
  EndInQueue(view, draft);
  FinalCounts(view, draft);
  if (policy.ttl_seconds_after_finished && completed) {
    const TimePoint due = *completed + BoundedSeconds(*policy.ttl_seconds_after_finished);
    if (view.now >= due) {
      draft->Add(Phase::kReport,
                 DeleteJob{.uid = view.job.metadata.uid,
                           .resource_version = view.job.metadata.resource_version},
                 "runPolicy.ttlSecondsAfterFinished have passed since its end");
    } else {
      draft->WakeAt(due);
    }
  }
}

}  // namespace meshtrain::reconcile
