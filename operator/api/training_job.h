// TrainingJob (meshtrain.dev/v1) as plain values. JSON in and out: json.h; rules: rules.h; types,
// ranges and defaults: schema.h; the CRD's text: crd.h. Field names and semantics follow Kubeflow's
// TFJob where it had them.
//
// Kept true: a TrainingJob that came from FromJson has its role keys folded ("Master" -> chief),
// its defaults filled in and, in `problems`, everything that could not be read; text that is opaque
// to us (pod templates, `program`, the claim template) is compact JSON with the user's key order
// kept sorted, so equal manifests give equal values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::api {

using cluster::Role;

// One thing wrong with a manifest. ToString: "spec.replicaSpecs.worker.replicas: must be at least
// 0, got: -1".
struct FieldError {
  std::string path;
  std::string message;
  friend bool operator==(const FieldError&, const FieldError&) = default;
};
std::string ToString(const FieldError& error);

struct ObjectMeta {
  std::string name;
  std::string namespace_name;
  std::string uid;
  std::string resource_version;
  int64_t generation = 0;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::optional<TimePoint> created;
  std::optional<TimePoint> deleted;  // deletionTimestamp: the job is going away
  friend bool operator==(const ObjectMeta&, const ObjectMeta&) = default;
};

// A PodTemplateSpec: kept as text, with the few facts that rules read.
struct PodTemplate {
  std::string json;  // compact; empty: none was given
  // --- read from `json` ---
  int32_t containers = 0;
  std::string training_container;  // "trainer", else "tensorflow", else the first
  int32_t port = cluster::kTrainingPort;
  bool has_port = false;          // the container declares tfjob-port
  int32_t http_port = 0;          // meshtrain-http, 0 where absent
  bool has_tf_config = false;     // the user's own TF_CONFIG wins
  bool has_image = false;         // the container that trains names an image
  std::string working_directory;  // of the container that trains; empty: the image's
  std::string restart_policy;     // overridden by the replica spec's; a warning where set
  std::string scheduler_name;
  friend bool operator==(const PodTemplate&, const PodTemplate&) = default;
};

// restartPolicy
inline constexpr std::string_view kRestartAlways = "Always";
inline constexpr std::string_view kRestartOnFailure = "OnFailure";
inline constexpr std::string_view kRestartNever = "Never";  // the default, as TFJob
inline constexpr std::string_view kRestartExitCode = "ExitCode";

// At most `limit` restarts of a role; with a window, within any `window_seconds`.
struct RestartBudget {
  int32_t limit = 0;
  std::optional<int64_t> window_seconds;
  friend bool operator==(const RestartBudget&, const RestartBudget&) = default;
};

struct ReplicaSpec {
  int32_t replicas = 1;
  std::string restart_policy{kRestartNever};
  PodTemplate pod_template;
  std::optional<RestartBudget> restart_budget;
  friend bool operator==(const ReplicaSpec&, const ReplicaSpec&) = default;
};

// A PersistentVolumeClaim that somebody made, mounted in the container that trains.
struct Claim {
  std::string name;
  std::string path;      // absolute, or below the working directory
  std::string sub_path;  // the folder of the volume to mount; empty: all of it
  bool read_only = true;
  friend bool operator==(const Claim&, const Claim&) = default;
};

// Where metrics, events, report, model and checkpoints outlive the pods.
struct Output {
  std::string claim;
  std::string folder;  // within the claim; empty: the job's name
  friend bool operator==(const Output&, const Output&) = default;
};

struct Checkpoint {
  std::string path;                   // empty: the leader's output folder has a place
  std::string volume_claim_template;  // PersistentVolumeClaimTemplate as compact JSON; empty: none
  std::optional<int64_t> every_steps;
  std::optional<int32_t> keep;
  std::string resume = "Latest";  // or Never
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
};

struct SchedulingPolicy {
  std::optional<int32_t> min_available;
  std::string queue;
  std::string priority_class;
  std::map<std::string, std::string> min_resources;  // resource -> quantity
  std::optional<int32_t> schedule_timeout_seconds;
  friend bool operator==(const SchedulingPolicy&, const SchedulingPolicy&) = default;
};

inline constexpr std::string_view kCleanAll = "All";
inline constexpr std::string_view kCleanRunning = "Running";
inline constexpr std::string_view kCleanNone = "None";  // the default, as TFJob

struct RunPolicy {
  std::string clean_pod_policy{kCleanNone};
  std::optional<int64_t> ttl_seconds_after_finished;
  std::optional<int64_t> active_deadline_seconds;
  std::optional<int64_t> startup_deadline_seconds;
  std::optional<int64_t> progress_deadline_seconds;
  // A pod on a node not heard of for so long is replaced, although its processes may live on.
  // Unset: only where the Node is gone or tainted out-of-service.
  std::optional<int64_t> dead_node_seconds;
  std::optional<int64_t>
      peer_return_seconds;  // what the worker does with it: cluster::kEnvPeerReturn
  std::optional<int32_t> backoff_limit;
  std::optional<int64_t> backoff_window_seconds;  // the limit counts restarts within it only
  bool suspend = false;
  std::string managed_by;
  std::optional<SchedulingPolicy> scheduling_policy;
  friend bool operator==(const RunPolicy&, const RunPolicy&) = default;
};

inline constexpr std::string_view kActionRestart = "Restart";
inline constexpr std::string_view kActionRestartAll = "RestartAll";
inline constexpr std::string_view kActionFail = "Fail";
inline constexpr std::string_view kActionIgnore = "Ignore";

// Matches a failed pod when each list that is not empty holds its value. A disruption (eviction,
// drain, preemption) is matched only by a rule that names its reason.
struct FailureRule {
  std::vector<Role> roles;
  std::vector<int32_t> exit_codes;
  std::vector<std::string> reasons;  // "OOMKilled", "Evicted", …
  std::string action;
  friend bool operator==(const FailureRule&, const FailureRule&) = default;
};

struct Elastic {
  int32_t min_replicas = 1;
  int32_t max_replicas = 1;
  friend bool operator==(const Elastic&, const Elastic&) = default;
};

inline constexpr std::string_view kSuccessAllWorkers = "AllWorkers";
// How a job's processes speak to each other: sealed, both sides with certificates; or as bytes go.
inline constexpr std::string_view kMutualTls = "mutualTLS", kPlain = "none";
inline constexpr std::string_view kCompatKubeflowV1 = "kubeflow-v1";
inline constexpr std::string_view kStrategyMesh = "Mesh";
inline constexpr std::string_view kStrategyParameterServer = "ParameterServer";

struct Spec {
  std::map<Role, ReplicaSpec> replica_specs;
  std::string strategy;  // empty: the image decides
  std::string program;   // compact JSON; empty: the user's own image
  bool program_has_mesh = false;
  std::vector<Claim> claims;
  std::optional<Output> output;
  std::optional<Checkpoint> checkpoint;
  RunPolicy run_policy;
  std::string success_policy;  // "" or AllWorkers
  bool wait_for_evaluator = false;
  std::vector<FailureRule> failure_rules;
  std::optional<Elastic> elastic;  // of the role worker
  std::string tf_config_compat;    // "" or kubeflow-v1
  std::string security;            // "", kMutualTls or kPlain
  friend bool operator==(const Spec&, const Spec&) = default;
};

// --- status
// -----------------------------------------------------------------------------------------------------------

enum class ConditionType : uint8_t {
  kCreated,
  kRunning,
  kRestarting,
  kSuspended,
  kSucceeded,
  kFailed,
  kWaiting,
  kStalled,
  kStraggling
};
std::string_view ConditionName(ConditionType type);

struct Condition {
  bool status = false;
  std::string reason;
  std::string message;
  int64_t observed_generation = 0;
  TimePoint last_transition;
  friend bool operator==(const Condition&, const Condition&) = default;
};

struct ReplicaStatus {
  int32_t replicas = 0;  // pods that exist and are wanted
  int32_t active = 0;    // running
  int32_t succeeded = 0;
  int32_t failed = 0;
  int32_t restarts = 0;  // pods made again, and containers restarted in place
  friend bool operator==(const ReplicaStatus&, const ReplicaStatus&) = default;
};

// Of the processes that work in step, the one whose own share of a step takes longest.
struct Straggler {
  std::string replica;        // "worker-3"
  double seconds = 0;         // of its last step, without waiting for others
  double median_seconds = 0;  // of all of them
  friend bool operator==(const Straggler&, const Straggler&) = default;
};

struct ProgressStatus {
  int64_t step = 0;
  std::optional<int64_t> total_steps;
  std::optional<double> epoch;
  std::optional<double> loss;
  std::optional<double> accuracy;
  std::optional<double> examples_per_second;
  std::optional<int64_t> eta_seconds;
  TimePoint observed_at;
  TimePoint advanced_at;                   // when `step` last moved
  std::optional<double> seconds_per_step;  // the job's own usual step time
  std::optional<Straggler> slowest;        // nothing: fewer than two processes tell
  friend bool operator==(const ProgressStatus&, const ProgressStatus&) = default;
};

struct PlanStatus {
  std::string mesh;
  std::optional<int64_t> peak_bytes_per_device;
  std::optional<int64_t> collective_bytes_per_step;
  std::string hash;
  friend bool operator==(const PlanStatus&, const PlanStatus&) = default;
};

struct CheckpointStatus {
  int64_t step = 0;
  std::string path;
  friend bool operator==(const CheckpointStatus&, const CheckpointStatus&) = default;
};

// A pod in trouble, now or when it last ended.
struct Trouble {
  std::string pod;
  std::optional<int32_t> exit_code;
  std::string reason;
  std::string last_line;
  friend bool operator==(const Trouble&, const Trouble&) = default;
};

// What is known of containers that the kubelet restarted: each restart counts once, as batch/v1
// counts, but those with 138 whose termination messages name the same lost incarnation count once
// together. What was read from pods once stays counted when they are gone: total() never falls.
struct InPlace {
  int32_t told = 0;  // by the pods that are there, less what `lost` joins
  int32_t past = 0;  // by pods that are gone, less what was joined and is no longer in `lost`
  struct Lost {
    std::string incarnation;
    int32_t pods = 0;  // the most that told of it at once
    friend bool operator==(const Lost&, const Lost&) = default;
  };
  std::vector<Lost> lost;  // newest last, at most kMaxLost
  int32_t total() const { return told + past; }
  friend bool operator==(const InPlace&, const InPlace&) = default;
};

// The operator's memory of restarts. Bounded, and all of it is needed to decide the same after a
// crash.
struct Recovery {
  int32_t attempt = 0;  // grows with each incident; pods carry the attempt they were made in
  int32_t restart_all_below = 0;  // pods of an earlier attempt than this are to be made again
  int32_t counted = 0;            // incidents that count against backoffLimit
  int32_t disruptions = 0;        // incidents that do not
  std::map<Role, int32_t> counted_by_role;
  std::map<Role, int32_t> incidents_by_role;  // disruptions included
  struct Recent {
    TimePoint at;
    Role role = Role::kWorker;
    bool counted = true;  // against backoffLimit
    bool in_place =
        false;  // by the kubelet: always against the role's budget, and never paced here
    friend bool operator==(const Recent&, const Recent&) = default;
  };
  std::vector<Recent>
      recent;  // incidents, newest last, at most kMaxRecent; counted ones stay longer
  // Containers restarted in place, of the whole job and by role.
  InPlace in_place;
  std::map<Role, InPlace> in_place_by_role;
  struct OutOfMemory {
    std::string replica;  // "worker-3"
    int32_t attempt = 0;  // of the pod that was killed
    friend bool operator==(const OutOfMemory&, const OutOfMemory&) = default;
  };
  std::vector<OutOfMemory> out_of_memory;  // at most kMaxOutOfMemory
  // Lost incarnations that processes left with 138 for, and that were counted; newest last, at most
  // kMaxLost.
  std::vector<std::string> lost_incarnations;
  // The creation time of the newest pod when the job's end was recorded, by the API server's clock:
  // a pod that is newer was made by a write that was under way then.
  std::optional<TimePoint> newest_pod;
  friend bool operator==(const Recovery&, const Recovery&) = default;
};
inline constexpr size_t kMaxRecent = 32;
inline constexpr size_t kMaxWorst = 10;
inline constexpr size_t kMaxOutOfMemory = 16;
inline constexpr size_t kMaxLost = 3;
// Of a status as JSON: FitStatus keeps to it.
inline constexpr size_t kMaxStatusBytes = 8192;

// Where the wall time since the start went.
struct Goodput {
  double waiting_seconds = 0;  // from the start, or from a resumption, until the job first ran
  double running_seconds = 0;
  double restarting_seconds = 0;
  int64_t lost_steps = 0;  // steps that were done twice
  std::optional<double> ratio;
  friend bool operator==(const Goodput&, const Goodput&) = default;
};

struct JobStatus {
  std::map<ConditionType, Condition> conditions;
  std::string phase;  // one word of the above, for the PHASE column
  std::string ready;  // "3/4"
  int32_t restarts = 0;
  std::map<Role, ReplicaStatus> replica_statuses;
  std::string label_selector;  // for the scale subresource
  // What `spec.security` meant when the job began, where it says nothing; "": not decided.
  std::string security;
  int64_t observed_generation = 0;
  std::optional<TimePoint> start_time;
  std::optional<TimePoint> completion_time;
  std::optional<TimePoint> last_reconcile_time;  // when this status was written
  double active_seconds_before =
      0;  // spent before the last suspension; activeDeadlineSeconds counts it
  std::optional<ProgressStatus> progress;
  std::optional<PlanStatus> plan;
  std::optional<CheckpointStatus> checkpoint;
  std::vector<Trouble> worst;
  std::string what_to_do;  // about what holds the job up, in one line; empty: nothing does
  Recovery recovery;
  Goodput goodput;
  friend bool operator==(const JobStatus&, const JobStatus&) = default;
};

struct TrainingJob {
  ObjectMeta metadata;
  Spec spec;
  JobStatus status;
  std::vector<FieldError>
      problems;  // what FromJson could not read; Validate (rules.h) repeats them
  std::vector<std::string>
      odd_role_keys;  // spellings of `worker` that the scale subresource does not see
  friend bool operator==(const TrainingJob&, const TrainingJob&) = default;
};

// --- small questions that several folders ask
// ---------------------------------------------------------------------------
bool IsTrue(const JobStatus& status, ConditionType type);
bool IsFinished(const JobStatus& status);       // Succeeded or Failed
int32_t Replicas(const Spec& spec, Role role);  // 0 where the role is absent
int64_t TotalReplicas(const Spec& spec);
// The replica whose end decides the job's: the chief, else worker 0.
cluster::TaskId Leader(const Spec& spec);

}  // namespace meshtrain::api
