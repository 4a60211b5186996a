// What operator, worker and command line agree on about a job, beside TF_CONFIG (tf_config.h):
// roles, names, labels, ports, environment variables, exit codes. Nothing here may change meaning
// between two versions that run together.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshtrain::cluster {

// --- roles
// ------------------------------------------------------------------------------------------------------------
// In the order in which ranks are numbered: the chief is rank 0. Ps and evaluator stand outside the
// mesh.
enum class Role : uint8_t { kChief = 0, kWorker = 1, kPs = 2, kEvaluator = 3 };
inline constexpr std::array<Role, 4> kRoles = {Role::kChief, Role::kWorker, Role::kPs,
                                               Role::kEvaluator};

// "chief", "worker", "ps", "evaluator": as TF_CONFIG spells them.
std::string_view RoleName(Role role);
// Any case; "Master" is TFJob's older word for the chief.
std::optional<Role> ParseRole(std::string_view text);

// One process of a job.
struct TaskId {
  Role role = Role::kWorker;
  int32_t index = 0;
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};
std::string ToString(TaskId task);  // "worker-3"

// --- names
// ------------------------------------------------------------------------------------------------------------
inline constexpr std::string_view kGroup = "meshtrain.dev";
inline constexpr std::string_view kApiVersion = "meshtrain.dev/v1";
inline constexpr std::string_view kKind = "TrainingJob";
inline constexpr std::string_view kPlural = "trainingjobs";
// The value of spec.runPolicy.managedBy that means this operator; so does its absence.
inline constexpr std::string_view kManagedBy = "meshtrain.dev/operator";
// The one other controller that is known: Kueue's, which runs the job in another cluster.
inline constexpr std::string_view kManagedByMultiKueue = "kueue.x-k8s.io/multikueue";
// A pod's name is also its host name, which Linux and DNS limit.
inline constexpr size_t kMaxNameLength = 63;

// "mnist-worker-3": the pod, its host name and, with kubeflow-v1 names, its Service.
std::string PodName(std::string_view job, TaskId task);
// FNV-1a of 32 bits as eight hexadecimal digits, which any name may end in.
std::string ShortHash(std::string_view text);
// Names of objects that only this job's pods mount. They end in ShortHash of the job's uid, so that
// no object of another, nor of a former job of the same name, is ever taken for this job's.
std::string TokenSecretName(std::string_view job, std::string_view uid);  // "mnist-token-811c9dc5"
std::string TlsSecretName(std::string_view job, std::string_view uid);    // "mnist-tls-811c9dc5"
std::string CheckpointClaimName(std::string_view job,
                                std::string_view uid);  // "mnist-checkpoint-811c9dc5"

// Containers that train, by preference; else the pod's first container.
inline constexpr std::string_view kTrainingContainers[] = {"trainer", "tensorflow"};

// --- labels and annotations
// -------------------------------------------------------------------------------------------
inline constexpr std::string_view kLabelJob = "meshtrain.dev/job-name";
inline constexpr std::string_view kLabelRole = "meshtrain.dev/replica-type";
inline constexpr std::string_view kLabelIndex = "meshtrain.dev/replica-index";
inline constexpr std::string_view kLabelManagedBy = "app.kubernetes.io/managed-by";
inline constexpr std::string_view kManagedByValue = "meshtrain-operator";
// On the pod that decides the job's success (the chief, or worker 0): "true".
inline constexpr std::string_view kLabelLeader = "meshtrain.dev/leader";
// Which attempt of the job a pod was created in: a decimal number, from 0.
inline constexpr std::string_view kAnnotationAttempt = "meshtrain.dev/attempt";
// Which cluster the pod was told: pods of one job that can run at once have it alike.
inline constexpr std::string_view kAnnotationCluster = "meshtrain.dev/cluster";
// The uid of the job that the pod was made for: by it alone a pod without an owner is known.
inline constexpr std::string_view kAnnotationJobUid = "meshtrain.dev/job-uid";

// --- ports
// ------------------------------------------------------------------------------------------------------------
inline constexpr std::string_view kTrainingPortName = "tfjob-port";
inline constexpr int32_t kTrainingPort = 2222;
inline constexpr std::string_view kHttpPortName = "meshtrain-http";
inline constexpr int32_t kHttpPort = 2280;

// --- environment
// ------------------------------------------------------------------------------------------------------
inline constexpr std::string_view kEnvTfConfig = "TF_CONFIG";
// A file with {"cluster":…} where TF_CONFIG would be too long; then the next two say who reads it.
inline constexpr std::string_view kEnvClusterFile = "MESHTRAIN_CLUSTER_FILE";
inline constexpr std::string_view kEnvRole = "MESHTRAIN_ROLE";
inline constexpr std::string_view kEnvIndex = "MESHTRAIN_INDEX";
inline constexpr std::string_view kEnvJob = "MESHTRAIN_JOB";          // NAMESPACE/NAME
inline constexpr std::string_view kEnvAttempt = "MESHTRAIN_ATTEMPT";  // as kAnnotationAttempt
inline constexpr std::string_view kEnvProgram =
    "MESHTRAIN_PROGRAM";  // spec.program as compact JSON
inline constexpr std::string_view kEnvStrategy = "MESHTRAIN_STRATEGY";  // spec.strategy
inline constexpr std::string_view kEnvCheckpoint =
    "MESHTRAIN_CHECKPOINT";  // spec.checkpoint as compact JSON
inline constexpr std::string_view kEnvOutput =
    "MESHTRAIN_OUTPUT";  // the folder for metrics, events, report and model
inline constexpr std::string_view kEnvTokenFile =
    "MESHTRAIN_TOKEN_FILE";  // the job's shared secret
// PEM files for mutual TLS between the processes of a job: all three or none.
inline constexpr std::string_view kEnvTlsCa = "MESHTRAIN_TLS_CA";
inline constexpr std::string_view kEnvTlsCertificate = "MESHTRAIN_TLS_CERT";
inline constexpr std::string_view kEnvTlsKey = "MESHTRAIN_TLS_KEY";
inline constexpr std::string_view kEnvPeerReturn =
    "MESHTRAIN_PEER_RETURN_SECONDS";  // runPolicy.peerReturnSeconds
// A file for the last progress, as a pod's termination message; the container's default where it is
// not set.
inline constexpr std::string_view kEnvTerminationLog = "MESHTRAIN_TERMINATION_LOG";
inline constexpr std::string_view kEnvClusterDomain =
    "CUSTOM_CLUSTER_DOMAIN";  // read by the operator

// The working directory of a job's containers, from which relative paths of a manifest begin; what
// is written elsewhere below it goes with the pod.
inline constexpr std::string_view kWorkFolder = "/work";
// Below kWorkFolder: where the claim of spec.output is mounted.
inline constexpr std::string_view kOutputMount = "output";
// The group that a pod's volumes belong to, so that a process that is not root can read its token
// and write to its claims. Also the user and the group of our images.
inline constexpr int64_t kPodGroup = 65532;

inline constexpr std::string_view kClusterMountPath = "/etc/meshtrain/cluster";
inline constexpr std::string_view kClusterFileName = "cluster.json";
inline constexpr std::string_view kTokenMountPath = "/etc/meshtrain/token";
inline constexpr std::string_view kTokenFileName = "token";
inline constexpr std::string_view kTlsMountPath = "/etc/meshtrain/tls";
// As Secrets of the type kubernetes.io/tls have them.
inline constexpr std::string_view kTlsCaFileName = "ca.crt", kTlsCertificateFileName = "tls.crt",
                                  kTlsKeyFileName = "tls.key";

// Linux's MAX_ARG_STRLEN: NAME=VALUE and its terminator must fit (execve(2)).
inline constexpr size_t kMaxEnvironmentBytes = 131072;
// Whether NAME=VALUE may be handed to a process.
constexpr bool FitsEnvironment(size_t name_bytes, size_t value_bytes) {
  return name_bytes + 1 + value_bytes + 1 <= kMaxEnvironmentBytes;
}

// --- exit codes
// -------------------------------------------------------------------------------------------------------
// sysexits.h where it has a word for it; 128 + signal for what the kernel or a runtime sends.
inline constexpr int kExitDone = 0;  // and the final checkpoint is durable
inline constexpr int kExitUsage = 64;
inline constexpr int kExitBadData = 65;
inline constexpr int kExitNoInput = 66;
inline constexpr int kExitInternal = 70;  // a bug of ours, or copies of a value that differ
inline constexpr int kExitCannotCreate = 73;
inline constexpr int kExitIo = 74;
inline constexpr int kExitBadConfig = 78;
inline constexpr int kExitNotFinite = 79;  // a loss, a gradient or a new value that is not finite
inline constexpr int kExitInterrupted = 130;  // SIGINT: stopped before the end, after saving
inline constexpr int kExitAborted = 134;
inline constexpr int kExitKilled = 137;
inline constexpr int kExitRetry =
    138;  // "retry me": peer lost, collective's deadline, device reset
inline constexpr int kExitSegfault = 139;
inline constexpr int kExitTerminated = 143;  // SIGTERM: stopped before the end, after saving

enum class ExitClass : uint8_t {
  kDone,
  kPermanent,  // the same would happen again
  kRetryable,
};
// What the restart policy ExitCode makes of a code. 137 is retryable here; twice OOMKilled in a row
// is for the operator to see.
ExitClass ClassifyExit(int code);

}  // namespace meshtrain::cluster
