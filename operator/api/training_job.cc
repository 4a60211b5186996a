#include "operator/api/training_job.h"

namespace meshtrain::api {

std::string ToString(const FieldError& error) { return error.path + ": " + error.message; }

std::string_view ConditionName(ConditionType type) {
  switch (type) {
    case ConditionType::kCreated:
      return "Created";
    case ConditionType::kRunning:
      return "Running";
    case ConditionType::kRestarting:
      return "Restarting";
    case ConditionType::kSuspended:
      return "Suspended";
    case ConditionType::kSucceeded:
      return "Succeeded";
    case ConditionType::kFailed:
      return "Failed";
    case ConditionType::kWaiting:
      return "Waiting";
    case ConditionType::kStalled:
      return "Stalled";
    case ConditionType::kStraggling:
      return "Straggling";
  }
  return "?";
}

bool IsTrue(const JobStatus& status, ConditionType type) {
  const auto found = status.conditions.find(type);
  return found != status.conditions.end() && found->second.status;
}

bool IsFinished(const JobStatus& status) {
  return IsTrue(status, ConditionType::kSucceeded) || IsTrue(status, ConditionType::kFailed);
}

int32_t Replicas(const Spec& spec, Role role) {
  const auto found = spec.replica_specs.find(role);
  return found == spec.replica_specs.end() ? 0 : found->second.replicas;
}

int64_t TotalReplicas(const Spec& spec) {
  int64_t total = 0;
  for (const auto& [role, replica] : spec.replica_specs) total += replica.replicas;
  return total;
}

cluster::TaskId Leader(const Spec& spec) {
  return {Replicas(spec, Role::kChief) > 0 ? Role::kChief : Role::kWorker, 0};
}

}  // namespace meshtrain::api
