// The operator's one decision. Reconcile looks at a job and the world and says what to do; it
// touches nothing. Around it stand operator/control (a cluster) and operator/local (processes).
//
// How to apply an Outcome, so that any crash between two writes converges to the same end:
//   1. Phases in ascending order; actions of one phase may run in parallel; the first error ends
//      the outcome (look again later). Status writes that record a decision come before the writes
//      that carry it out.
//   2. PatchStatus replaces the status and must carry the job's resourceVersion: a conflict means
//      that the decision was made on old knowledge, and nothing after it may happen. The next
//      Reconcile must know this write: its answer goes into the store at once, and where there was
//      none (a conflict, an error, silence) the job is read anew. A job seen as it was before its
//      own Succeeded would be run again once its pods are gone.
//   3. "Already exists" counts as done when the existing object's controller is the job's uid and
//      it is not being deleted (for CreateSecret always, since Secrets are not read: its name
//      carries the job's uid); else it is a RefusedWrite for Observed.refused. A claim of ours that
//      is being deleted, and a Secret or config map that a probe finds missing, end the outcome
//      with a LostChild for Observed.lost_child.
//   4. Deletions carry the uid as precondition; "not found" and a uid conflict count as done.
//      DeleteJob also carries the job's resourceVersion, the one that the outcome's own PatchStatus
//      has left where there is one. A conflict is none of "done" there: the job is read anew, as
//      after a PatchStatus.
//   5. Events are best effort and never fail an outcome.
//   6. An outcome that was applied need not be followed by another look: what it changed is seen,
//      and that wakes the job; time wakes it at `wake_at`.
//
// Properties (tested): the order of Observed's lists does not matter; an outcome applied to a world
// that then settles is followed by an empty one; no two live pods of one replica; no two pods that
// can run at once with different clusters; a job recorded as Succeeded never runs again; no pod is
// created before the job's Service is there; a request that was answered is not made again while
// its object stays as it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "runtime/base/clock.h"

namespace meshtrain::reconcile {

// Writes below are in the job's namespace. `body` is the whole object as compact JSON, ready to
// POST.
struct CreateService {
  std::string name;
  std::string body;
  friend bool operator==(const CreateService&, const CreateService&) = default;
};
struct DeleteService {  // of a replica that is wanted no more (kubeflow-v1)
  std::string name;
  std::string uid;
  friend bool operator==(const DeleteService&, const DeleteService&) = default;
};
// The cluster file of a job too large for TF_CONFIG.
struct CreateConfigMap {
  std::string name;
  std::string body;
  bool probe = false;  // as CreateSecret::probe
  friend bool operator==(const CreateConfigMap&, const CreateConfigMap&) = default;
};
// What the job's processes share and nobody else knows. `body` lacks the value, for stringData: 32
// random bytes, hexadecimal, under `key`; or, where there are hosts, certificates for these under
// the names of cluster/contract.h (certificates/certificates.h).
struct CreateSecret {
  std::string name;
  std::string key;
  std::string body;
  std::vector<std::string> hosts;
  // Pods that hold it are there. It is asked for with dryRun=All: "already exists" is done; an
  // answer that it could be made is a LostChild, since another value would split the job.
  bool probe = false;
  friend bool operator==(const CreateSecret&, const CreateSecret&) = default;
};
struct CreateClaim {  // PersistentVolumeClaim of spec.checkpoint
  std::string name;
  std::string body;
  friend bool operator==(const CreateClaim&, const CreateClaim&) = default;
};
struct CreateNetworkPolicy {  // Settings::http_peers
  std::string name;
  std::string body;
  friend bool operator==(const CreateNetworkPolicy&, const CreateNetworkPolicy&) = default;
};
struct CreatePodGroup {
  std::string name;
  std::string body;
  friend bool operator==(const CreatePodGroup&, const CreatePodGroup&) = default;
};
struct PatchPodGroup {  // merge patch
  std::string name;
  std::string body;
  friend bool operator==(const PatchPodGroup&, const PatchPodGroup&) = default;
};
struct DeletePodGroup {
  std::string name;
  std::string uid;
  friend bool operator==(const DeletePodGroup&, const DeletePodGroup&) = default;
};
struct CreateWorkload {  // Settings::queue
  std::string name;
  std::string body;
  friend bool operator==(const CreateWorkload&, const CreateWorkload&) = default;
};
struct PatchWorkload {  // merge patch
  std::string name;
  std::string body;
  bool status = false;  // of the status subresource
  friend bool operator==(const PatchWorkload&, const PatchWorkload&) = default;
};
struct DeleteWorkload {
  std::string name;
  std::string uid;
  friend bool operator==(const DeleteWorkload&, const DeleteWorkload&) = default;
};
// The body is made when it is sent, by PodBody (children.h): 2,000 bodies of 100 kB would not fit.
struct CreatePod {
  std::string name;
  cluster::TaskId task;
  int32_t attempt = 0;
  friend bool operator==(const CreatePod&, const CreatePod&) = default;
};
struct DeletePod {
  std::string name;
  std::string uid;  // precondition
  std::optional<int64_t>
      grace_seconds;  // 0: by force, for a node that will not answer; none: the pod's own
  friend bool operator==(const DeletePod&, const DeletePod&) = default;
};
struct AdoptPod {  // set the controller reference; precondition: uid
  std::string name;
  std::string uid;
  friend bool operator==(const AdoptPod&, const AdoptPod&) = default;
};
struct ReleasePod {  // take our controller reference away; precondition: uid
  std::string name;
  std::string uid;
  friend bool operator==(const ReleasePod&, const ReleasePod&) = default;
};
struct PatchStatus {
  api::JobStatus status;  // the whole next status; last_reconcile_time is now
  std::string resource_version;
  friend bool operator==(const PatchStatus&, const PatchStatus&) = default;
};
struct DeleteJob {  // ttlSecondsAfterFinished; propagationPolicy Background
  std::string uid;
  // As the decision saw it (rule 4): a job that an older etcd brought back may run again.
  std::string resource_version;
  friend bool operator==(const DeleteJob&, const DeleteJob&) = default;
};
struct RecordEvent {
  bool warning = false;
  std::string reason;
  std::string message;
  friend bool operator==(const RecordEvent&, const RecordEvent&) = default;
};

using Write = std::variant<CreateService, DeleteService, CreateConfigMap, CreateSecret, CreateClaim,
                           CreateNetworkPolicy, CreatePodGroup, PatchPodGroup, DeletePodGroup,
                           CreateWorkload, PatchWorkload, DeleteWorkload, CreatePod, DeletePod,
                           AdoptPod, ReleasePod, PatchStatus, DeleteJob, RecordEvent>;

// In ascending order, these are the phases.
enum class Phase : uint8_t {
  kDecide,   // PatchStatus that later phases rely on
  kRemove,   // DeletePod, AdoptPod, ReleasePod, DeleteService, DeletePodGroup, DeleteWorkload
  kPrepare,  // CreateService, CreateSecret, CreateConfigMap, CreateClaim, CreateNetworkPolicy, pod
             // group, Workload
  kCreate,   // CreatePod
  kReport,   // PatchStatus that only tells; DeleteJob
  kTell,     // RecordEvent
};

struct Action {
  Phase phase = Phase::kDecide;
  Write write;
  std::string why;  // for the log: "mnist-worker-1 failed with exit code 138"
  // May be sent though it was answered before and nothing was told since: no watch shows its
  // object.
  bool repeat = false;
  friend bool operator==(const Action&, const Action&) = default;
};

// What an admission adds to the pods of a role, beside what the role's template says. The template
// stays as the user wrote it.
struct Placement {
  std::map<std::string, std::string> node_selector, labels, annotations;
  std::vector<std::string> tolerations;  // each as compact JSON
  friend bool operator==(const Placement&, const Placement&) = default;
};
using Placements = std::map<cluster::Role, Placement>;

struct Outcome {
  std::vector<Action> actions;       // sorted by phase, then by name
  Placements placements;             // of the pods that are created
  std::optional<TimePoint> wake_at;  // look again then, if nothing happens before
  bool again = false;  // look again as soon as this was applied (Settings::max_creates was reached)
  // A status is to be written that only tells, but not before `wake_at`.
  bool tells_later = false;
  std::string rests;  // why no more is done, for the log at `debug`; never empty without actions
  bool empty() const { return actions.empty(); }
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Decides and touches nothing. `now` is wall time; nothing else tells the time. Never fails: an
// object that makes no sense becomes a Failed condition.
Outcome Reconcile(const api::TrainingJob& job, const Observed& seen, TimePoint now);

// Whether the outcome asks for what pods mount (Observed::mounts_asked, once it is applied).
bool AsksForMounts(const Outcome& outcome);

// One line per action, for logs and tests: "create pod mnist-worker-0 (attempt 0)"; of an action
// with its reason: "create pod mnist-worker-0 (attempt 0): it is missing".
std::string ToString(const Write& write);
std::string ToString(const Action& action);
std::string ToString(const Outcome& outcome);

}  // namespace meshtrain::reconcile
