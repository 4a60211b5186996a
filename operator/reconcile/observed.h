// The world as last seen, as far as one job needs it. The controller fills this from its store; the
// local runner from its processes. Order of the lists means nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/queue_seen.h"

namespace meshtrain::reconcile {

enum class PodPhase : uint8_t { kPending, kRunning, kSucceeded, kFailed, kUnknown };
enum class NodeState : uint8_t {
  kUnseen,  // the operator may not read Nodes, or the pod has no node yet
  kReady,
  kNotReady,      // not heard of; its processes may live on, cut off from the API server
  kGone,          // the Node object was deleted
  kOutOfService,  // tainted node.kubernetes.io/out-of-service: an administrator says it is off
};

// The few fields of a pod that decisions read. Where a container is meant, it is the training
// container.
//
// Whose clock a time is of stands beside it, since clocks may differ by an hour. Decisions compare
// times of one clock only; where `now` (the operator's) meets a time of another clock, only the
// moment of an action hangs on it, never which action.
struct PodSeen {
  std::string name;
  std::string uid;
  // The labels kLabelRole and kLabelIndex; absent where they do not parse.
  std::optional<cluster::TaskId> task;
  // All of the job's selector labels (SelectorLabels) are there with our values.
  bool matches_selector = true;
  // metadata.ownerReferences' controller; empty: an orphan.
  std::string controller_uid;
  int32_t attempt = 0;  // kAnnotationAttempt
  std::string cluster;  // kAnnotationCluster; empty: made before there was one
  std::string job_uid;  // kAnnotationJobUid; empty: as above, or made by somebody else
  TimePoint created;    // the API server's clock
  // metadata.deletionTimestamp minus deletionGracePeriodSeconds: when the deletion was asked for,
  // by the API server's clock.
  std::optional<TimePoint> delete_requested;
  // metadata.deletionTimestamp: when the grace period ends, by the API server's clock. Equal to
  // `delete_requested`: the deletion is by force, and asking again would change nothing.
  std::optional<TimePoint> delete_due;
  // When this operator process first saw the deletion, by its own clock; nothing: it cannot say.
  std::optional<TimePoint> delete_seen;

  PodPhase phase = PodPhase::kPending;
  bool ready = false;
  std::string reason;                 // status.reason: "Evicted", "NodeLost", …
  bool disrupted = false;             // condition DisruptionTarget is True
  std::optional<int32_t> exit_code;   // of the ended container
  std::string exit_reason;            // "OOMKilled", "Error", "Completed"
  std::string termination_message;    // at most 4 kB; progress as JSON, or the last lines
  std::optional<TimePoint> finished;  // the node's clock
  std::optional<int32_t>
      last_exit_code;         // lastState.terminated.exitCode, of a container restarted in place
  int32_t restart_count = 0;  // over all containers, as TFJob counts
  // Why it does not start: a container's waiting.reason, or "Unschedulable" from the condition
  // PodScheduled.
  std::string waiting_reason;
  std::string waiting_message;
  // When this operator process first saw that it has its node and has not started, by its own
  // clock; nothing: it has no node, or it has started.
  std::optional<TimePoint> starting_since;
  // What its volumes are of, as its manifest names them, while it has not started: "Secret a, claim
  // b". No status of a pod says which of them does not mount.
  std::string volumes;

  std::string node;
  NodeState node_state = NodeState::kUnseen;
  // Since when this operator process has seen the node so, by its own clock.
  std::optional<TimePoint> node_not_ready_since;
  friend bool operator==(const PodSeen&, const PodSeen&) = default;
};
// The last line of what a pod's program said when it ended, or the error that it names among what
// it says for programs (its progress, the incarnation that it lost); empty where there is none.
std::string LastLine(const PodSeen& pod);

struct ServiceSeen {
  std::string name;
  std::string uid;
  std::string controller_uid;
  bool deleting = false;  // metadata.deletionTimestamp is there: finalizers hold it
  friend bool operator==(const ServiceSeen&, const ServiceSeen&) = default;
};

struct PodGroupSeen {
  std::string uid;
  std::string resource_version;
  std::string controller_uid;
  std::string phase;  // Volcano: "", "Pending", "Inqueue", "Running", …
  int32_t min_member = 0;
  bool deleting = false;  // metadata.deletionTimestamp is there: finalizers hold it
  friend bool operator==(const PodGroupSeen&, const PodGroupSeen&) = default;
};

// The own times of the processes that work in step, in their last steps.
struct RankTimes {
  int32_t slowest = 0;  // rank
  double seconds = 0;   // of the slowest
  double median = 0;
  friend bool operator==(const RankTimes&, const RankTimes&) = default;
};

// What the chief's /progress says, or a termination message.
struct ProgressSeen {
  api::ProgressStatus progress;  // advanced_at and seconds_per_step are ours to fill in
  std::optional<api::PlanStatus> plan;
  std::optional<api::CheckpointStatus> checkpoint;
  std::string stopped_rank;        // the rank that stopped first, where the worker reports it
  std::optional<RankTimes> ranks;  // nothing: fewer than two tell
  // When this operator process first saw this step, by its own clock; nothing: it cannot say.
  std::optional<TimePoint> standing_since;
  // When the leader, asked anew, is to have answered, by this operator process's own clock;
  // nothing: it may not be asked again.
  std::optional<TimePoint> next_answer;
  friend bool operator==(const ProgressSeen&, const ProgressSeen&) = default;
};

// Why a write that the last Outcome asked for was refused for good (quota, admission, a foreign
// object of that name, an API server that cannot). The controller keeps the newest per job until an
// apply of this job gets through, or an object of the job's names goes away.
struct RefusedWrite {
  std::string what;     // "pods \"mnist-worker-2\""
  std::string reason;   // the API's reason: "Forbidden", "InternalError", …
  std::string message;  // one line
  // Nothing is created before, by the operator's own clock; the controller makes the wait longer
  // with each refusal. Nothing: at once.
  std::optional<TimePoint> retry_at;
  friend bool operator==(const RefusedWrite&, const RefusedWrite&) = default;
};

// A child that the job's pods mount was found to be missing, or to be going away, when more pods
// were to be made (CreateSecret::probe, CreateConfigMap::probe; a claim that is being deleted).
// Somebody deleted it. The controller keeps it until an apply of this job gets through.
struct LostChild {
  std::string what;     // "secret \"mnist-token-811c9dc5\""
  int32_t attempt = 0;  // status.recovery.attempt of the job that the Outcome was made for
  friend bool operator==(const LostChild&, const LostChild&) = default;
};

// Who decides when a job that names a queue may run.
enum class QueueManager : uint8_t { kNone, kKueue };

enum class GangScheduler : uint8_t { kNone, kVolcano, kSchedulerPlugins };

// The operator's own settings, the same for every job.
struct Settings {
  std::string cluster_domain;  // CUSTOM_CLUSTER_DOMAIN; empty: hosts end in ".svc"
  GangScheduler gang = GangScheduler::kNone;
  std::string gang_scheduler_name;  // schedulerName of kSchedulerPlugins; "volcano" for kVolcano
  QueueManager queue = QueueManager::kNone;
  std::string worker_image =
      "meshtrain-worker:latest";  // where a job with a `program` has no template
  // The group of a pod's volumes where the template names none; nothing: the cluster gives one, as
  // OpenShift does.
  std::optional<int64_t> fs_group = cluster::kPodGroup;
  // Whether a job whose manifest says nothing of `security` is sealed, if it begins now.
  bool seals = false;
  // Who may reach the processes of jobs at meshtrain-http, as a JSON list of NetworkPolicyPeers
  // (CheckHttpPeers); each job then gets a policy that keeps all but those and its own processes
  // out. Nothing: no policy is made.
  std::optional<std::string> http_peers;
  int32_t max_creates =
      500;  // per Outcome, so that a big job never holds the thread; the rest follows at once
  friend bool operator==(const Settings&, const Settings&) = default;
};

struct Observed {
  // Every pod of the namespace that carries the job's name in kLabelJob or is controlled by its
  // uid.
  std::vector<PodSeen> pods;
  // Services with the job's name, or (kubeflow-v1) the name of one of its pods.
  std::vector<ServiceSeen> services;
  std::optional<PodGroupSeen> pod_group;
  QueueSeen queue;
  std::optional<ProgressSeen> progress;
  std::optional<RefusedWrite> refused;
  std::optional<LostChild> lost_child;
  // When this operator process last asked for all that pods mount and got its answers, by its own
  // clock; nothing: not yet.
  std::optional<TimePoint> mounts_asked;
  // When this operator process began to look after jobs, by its own clock; nothing: always. What
  // happened before it has not seen.
  std::optional<TimePoint> watched_since;
  Settings settings;
  friend bool operator==(const Observed&, const Observed&) = default;
};

}  // namespace meshtrain::reconcile
