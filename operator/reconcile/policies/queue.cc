// A job that names a queue runs while Kueue admits its Workload (workload.h), and stands still
// else.
//
// The order of what is written keeps two promises. Quota is given back once no pod of the job is
// left, so that nobody else is admitted beside pods that still end. And pods are made only from
// what was admitted: a Workload that says another thing than the job is renewed, or goes, before
// them.
#include "operator/reconcile/policy.h"
#include "operator/reconcile/workload.h"

namespace meshtrain::reconcile {
namespace {

// Reasons of Kueue's condition Evicted after which the place in the queue is kept as it was: nobody
// is to blame for it (jobframework/reconciler.go, "handle eviction").
bool RequeuesAtOnce(const std::string& reason) {
  return reason == "Preempted" || reason == "NodeFailures";
}

bool Ours(const View& view, const WorkloadSeen& workload) {
  return workload.controller_uid == view.job.metadata.uid;
}

// Whether the Workload is what the job asks for now. With quota it may be more than that: a job
// that was scaled down keeps its place, and scales up again within it.
bool Fits(const View& view, const WorkloadSeen& workload, bool reserved) {
  const auto wanted = PodSetCounts(view.job);
  if (workload.queue != QueueName(view.job) || workload.stamp != PodSetsStamp(view.job)) {
    return false;
  }
  if (!reserved) return workload.pod_sets == wanted;
  for (const auto& [name, count] : wanted) {
    const auto there = workload.pod_sets.find(name);
    if (there == workload.pod_sets.end() || count > there->second) return false;
  }
  return true;
}

void Delete(const View& view, const WorkloadSeen& workload, const char* why, Draft* draft) {
  if (!Ours(view, workload) || workload.deleting) return;
  draft->Add(Phase::kRemove, DeleteWorkload{.name = workload.name, .uid = workload.uid}, why);
}

// Adds what `made` holds, or says why there is nothing to add.
template <typename Made>
std::string Ask(const View& view, Result<Made> made, const char* why, Draft* draft) {
  if (!made.ok()) return std::string(made.status().message());
  if (MayAsk(view, draft)) draft->Add(Phase::kPrepare, *std::move(made), why);
  TellRefusal(view, draft);
  return "its place in the queue " + QueueName(view.job) + " is being asked for";
}

// Kueue took the admission back: the quota is free as soon as the pods are gone.
void GiveBack(const View& view, const WorkloadSeen& workload, WorkloadStatus status, Draft* draft) {
  const WorkloadCondition evicted = status.Find("Evicted").value_or(WorkloadCondition{
      .reason = "Pending", .message = "the job does not run and is not admitted"});
  status.Set("QuotaReserved", {.reason = "Pending", .message = evicted.message}, view.stamp);
  status.Set("Admitted", {.reason = "NoReservation", .message = "The workload has no reservation"},
             view.stamp);
  if (status.Is("Evicted")) {
    status.Set("Requeued",
               {.status = RequeuesAtOnce(evicted.reason),
                .reason = evicted.reason,
                .message = evicted.message},
               view.stamp);
  }
  if (status.Find("PodsReady")) {
    status.Set("PodsReady",
               {.reason = "WaitForStart", .message = "Not all pods are ready or succeeded"},
               view.stamp);
  }
  draft->Add(Phase::kPrepare, status.Patch(/*give_back=*/true),
             "its pods are gone: " + workload.cluster_queue + " has its quota back");
}

// Kueue evicts a job whose pods do not get ready in time, where it is told to (waitForPodsReady),
// and needs to be told.
void TellReady(const View& view, WorkloadStatus status, Draft* draft) {
  bool ready = true;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      ready =
          ready && pod != nullptr && !pod->delete_requested &&
          (pod->phase == PodPhase::kSucceeded || (pod->phase == PodPhase::kRunning && pod->ready));
    }
  }
  const auto told = status.Find("PodsReady");
  if (ready == (told && told->status)) return;
  const bool again = told && (told->reason == "WaitForRecovery" || told->reason == "Recovered");
  if (ready) {
    status.Set("PodsReady",
               {.status = true,
                .reason = again ? "Recovered" : "Started",
                .message = "All pods reached readiness and the workload is running"},
               view.stamp);
  } else {
    status.Set("PodsReady",
               {.reason = "WaitForRecovery",
                .message = "At least one pod has failed, waiting for recovery"},
               view.stamp);
  }
  draft->Add(Phase::kPrepare, status.Patch(/*give_back=*/false),
             ready ? "all pods are ready" : "not all pods are ready any more");
}

// What a Workload waits for that is not admitted, in Kueue's words.
std::string WaitsFor(const WorkloadSeen& workload, const WorkloadStatus& status) {
  if (status.Is("QuotaReserved")) {
    const std::string checks = PendingChecks(workload);
    return "it has its quota, and waits for admission checks" +
           (checks.empty() ? std::string() : ": " + checks);
  }
  const auto evicted = status.Find("Evicted");
  if (!workload.active) {
    return evicted && evicted->status ? evicted->message : "its Workload is deactivated";
  }
  const auto reserved = status.Find("QuotaReserved");
  if (reserved && !reserved->message.empty()) return reserved->message;
  return evicted && evicted->status ? evicted->message : "Kueue has not looked at it yet";
}

}  // namespace

std::optional<std::string> HeldByQueue(const View& view, bool sound, Draft* draft) {
  const auto& workload = view.seen.queue.workload;
  const std::string queue = QueueName(view.job);
  if (view.seen.settings.queue == QueueManager::kNone || (queue.empty() && !workload)) return {};
  const bool gone = view.ours.empty();
  if (!workload) {
    if (!gone || !sound) return "it has no Workload, so that its pods go";
    return Ask(view, NewWorkload(view.job, view.seen), "the job waits in a queue", draft);
  }
  if (!Ours(view, *workload)) {
    draft->Wait(Reason::kNameTaken,
                "a Workload of the name " + workload->name + " belongs to another");
    return "it has no Workload: its name is taken";
  }
  if (workload->deleting) return "its Workload " + workload->name + " is going away";

  const WorkloadStatus status(*workload);
  const bool reserved = status.Is("QuotaReserved");
  // Who said that the job has ended was wrong: it begins anew, at the end of the queue.
  const bool ended = status.Is("Finished");
  if (ended || queue.empty() || (sound && !Fits(view, *workload, reserved))) {
    if (!ended && !queue.empty() && !reserved) {
      return Ask(view, RenewWorkload(view.job, view.seen, *workload),
                 "the job has changed while it waited", draft);
    }
    if (gone) Delete(view, *workload, "it is not what the job asks for now", draft);
    return queue.empty() ? "it leaves its queue"
                         : "it has changed, and goes to the end of the queue " + queue;
  }
  if (const auto raise = RaiseWorkload(view.job, view.seen, *workload, reserved)) {
    draft->Add(Phase::kPrepare, *raise, "the job has another priority class");
  }
  const bool evicted = status.Is("Evicted");
  const bool admitted = status.Is("Admitted");
  if (evicted || !admitted || !reserved) {
    // Kueue waits for this before it gives the quota to whom it took it for.
    if (gone && (evicted ? reserved : admitted)) GiveBack(view, *workload, status, draft);
    return "queue " + queue + ": " +
           (evicted && reserved ? status.Find("Evicted")->message : WaitsFor(*workload, status));
  }
  auto placements = PlacementsOf(view.job, view.seen.queue);
  if (!placements.ok()) {
    return "queue " + queue +
           ": its admission cannot be used: " + std::string(placements.status().message());
  }
  draft->placements = *std::move(placements);
  TellReady(view, status, draft);
  return {};
}

void LeaveQueue(const View& view, Draft* draft) {
  const auto& workload = view.seen.queue.workload;
  if (!workload || !view.ours.empty()) return;
  Delete(view, *workload, "the job is suspended, and its pods are gone", draft);
}

void EndInQueue(const View& view, Draft* draft) {
  const auto& workload = view.seen.queue.workload;
  if (!workload || !Ours(view, *workload) || workload->deleting) return;
  WorkloadStatus status(*workload);
  if (status.Is("Finished")) return;
  const bool well = view.Is(ConditionType::kSucceeded);
  const auto end =
      view.job.status.conditions.find(well ? ConditionType::kSucceeded : ConditionType::kFailed);
  status.Set("Finished",
             {.status = true,
              .reason = well ? "Succeeded" : "Failed",
              .message = end == view.job.status.conditions.end() ? "" : end->second.message},
             view.stamp);
  draft->Add(Phase::kPrepare, status.Patch(/*give_back=*/false), "the job has ended");
}

void WarnOfNoQueue(const View& view, Draft* draft) {
  const std::string queue = QueueName(view.job);
  if (queue.empty() || view.seen.settings.queue != QueueManager::kNone) return;
  draft->Event(
      true, Reason::kManifestWarning,
      "metadata.labels: " + std::string(kLabelQueue) + " is " + queue +
          ", but no queue is looked after here (the operator's --queue kueue): the job does "
          "not wait for it");
}

}  // namespace meshtrain::reconcile
