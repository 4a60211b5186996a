// A job's Workload: what Kueue reckons with when it decides whether the job may run. Kueue makes
// Workloads of the kinds that it knows; for any other (integrations.externalFrameworks) the kind's
// own controller does. Pure functions of the job, the operator's settings and what was seen. The
// contract is that of Kueue's own jobs: pkg/controller/jobframework/reconciler.go of 0.17.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/status.h"

namespace meshtrain::reconcile {

// One pod set for each role that has replicas, of the role's name.
std::map<std::string, int32_t> PodSetCounts(const api::TrainingJob& job);
// Of the templates, as a short text. What an operator adds to pods is not part of it, so that
// another version of it sends no running job back into its queue.
std::string PodSetsStamp(const api::TrainingJob& job);

// The whole Workload, ready to POST. Errors: kNotFound where a priority class is named that is not
// there.
Result<CreateWorkload> NewWorkload(const api::TrainingJob& job, const Observed& seen);
// What makes the spec of a Workload without quota that of the job. Errors: as NewWorkload.
Result<PatchWorkload> RenewWorkload(const api::TrainingJob& job, const Observed& seen,
                                    const WorkloadSeen& workload);
// The same for its priority alone; nothing where it is the job's already, or may not be changed.
std::optional<PatchWorkload> RaiseWorkload(const api::TrainingJob& job, const Observed& seen,
                                           const WorkloadSeen& workload, bool reserved);

// Conditions of a Workload, read and written.
struct WorkloadCondition {
  bool status = false;
  std::string reason;
  std::string message;
};
class WorkloadStatus {
 public:
  explicit WorkloadStatus(const WorkloadSeen& workload);
  bool Is(const std::string& type) const;
  std::optional<WorkloadCondition> Find(const std::string& type) const;
  // The time is that of the change; it stays where the status does.
  void Set(const std::string& type, WorkloadCondition condition, TimePoint now);
  // A patch of the status for the Workload as it was seen. `give_back`: the admission goes.
  PatchWorkload Patch(bool give_back) const;

 private:
  const WorkloadSeen& workload_;
  std::string conditions_;
};

// What each admission check has to say while it is not ready, in one line.
std::string PendingChecks(const WorkloadSeen& workload);

// What the admission adds to the pods of each role. Errors: kNotFound for a flavor that is not
// there, kUnimplemented for what cannot be done (fewer pods than asked for, a topology),
// kInvalidArgument where a template asks for another value of a node's label.
Result<Placements> PlacementsOf(const api::TrainingJob& job, const QueueSeen& queue);

}  // namespace meshtrain::reconcile
