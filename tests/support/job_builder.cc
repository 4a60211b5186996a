#include "tests/support/job_builder.h"

#include "operator/api/json.h"

namespace meshtrain::testing_support {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;

TimePoint At(double seconds) {
  using namespace std::chrono;
  return TimePoint(sys_days(year(2026) / 1 / 1)) +
         duration_cast<Duration>(duration<double>(seconds));
}

JobBuilder::JobBuilder(std::string name) {
  job_.metadata.name = std::move(name);
  job_.metadata.namespace_name = "ml";
  job_.metadata.uid = "uid-1";
  job_.metadata.resource_version = "1";
  job_.metadata.generation = 1;
  job_.metadata.created = At(0);
}

JobBuilder& JobBuilder::Role(cluster::Role role, int count, std::string_view restart_policy) {
  api::ReplicaSpec& replica = job_.spec.replica_specs[role];
  replica.replicas = count;
  replica.restart_policy = std::string(restart_policy);
  return Template(role, R"({"spec":{"containers":[{"name":"trainer","image":"train:1"}]}})");
}
JobBuilder& JobBuilder::Chief(std::string_view policy) { return Role(Role::kChief, 1, policy); }
JobBuilder& JobBuilder::Workers(int count, std::string_view policy) {
  return Role(Role::kWorker, count, policy);
}
JobBuilder& JobBuilder::Ps(int count, std::string_view policy) {
  return Role(Role::kPs, count, policy);
}
JobBuilder& JobBuilder::Evaluator(std::string_view policy) {
  return Role(Role::kEvaluator, 1, policy);
}

JobBuilder& JobBuilder::Gpus(int count) {
  for (auto& [role, replica] : job_.spec.replica_specs) {
    Template(role,
             R"({"spec":{"containers":[{"name":"trainer","image":"train:1","resources":{"limits":)"
             R"({"nvidia.com/gpu":)" +
                 std::to_string(count) + R"(},"requests":{"cpu":"500m","memory":"1Gi"}}}]}})");
  }
  return *this;
}

JobBuilder& JobBuilder::Template(cluster::Role role, std::string_view json) {
  job_.spec.replica_specs[role].pod_template = api::ReadPodTemplate(json, "template", nullptr);
  return *this;
}
JobBuilder& JobBuilder::Program(std::string_view json) {
  job_.spec.program = std::string(json);
  return *this;
}
JobBuilder& JobBuilder::Backoff(int limit) {
  job_.spec.run_policy.backoff_limit = limit;
  return *this;
}
JobBuilder& JobBuilder::Clean(std::string_view policy) {
  job_.spec.run_policy.clean_pod_policy = std::string(policy);
  return *this;
}
JobBuilder& JobBuilder::Suspended(bool suspended) {
  job_.spec.run_policy.suspend = suspended;
  return *this;
}

std::string ProgramOnMesh(int devices) {
  std::string text(kProgram);
  return text.insert(text.find("\"model\""),
                     "\"mesh\":{\"batch\":" + std::to_string(devices) + "},");
}

JobBuilder MakeJob(std::string name) { return JobBuilder(std::move(name)); }

PodSeen MakePod(const api::TrainingJob& job, cluster::TaskId task, PodPhase phase) {
  PodSeen pod;
  pod.name = cluster::PodName(job.metadata.name, task);
  pod.uid = "pod-" + cluster::ToString(task);
  pod.task = task;
  pod.controller_uid = pod.job_uid = job.metadata.uid;
  pod.created = At(0);
  pod.phase = phase;
  pod.ready = phase == PodPhase::kRunning;
  pod.node = "node-1";
  pod.node_state = reconcile::NodeState::kReady;
  return pod;
}

PodSeen EndedPod(const api::TrainingJob& job, cluster::TaskId task, int exit_code,
                 std::string_view reason) {
  PodSeen pod = MakePod(job, task, exit_code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed);
  pod.exit_code = exit_code;
  pod.exit_reason = !reason.empty() ? std::string(reason) : exit_code == 0 ? "Completed" : "Error";
  pod.finished = At(50);
  return pod;
}

}  // namespace meshtrain::testing_support
