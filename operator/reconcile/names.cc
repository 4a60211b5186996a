// Labels, host names and each replica's TF_CONFIG.
#include "operator/reconcile/children.h"

namespace meshtrain::reconcile {
namespace {

using cluster::Form;
using cluster::Role;
using cluster::TaskId;

bool Legacy(const api::TrainingJob& job) {
  return job.spec.tf_config_compat == api::kCompatKubeflowV1;
}

}  // namespace

bool ElasticBesideServers(const api::TrainingJob& job) {
  return job.spec.elastic.has_value() && api::Replicas(job.spec, Role::kPs) > 0;
}

std::map<std::string, std::string> SelectorLabels(const api::TrainingJob& job) {
  return {{std::string(cluster::kLabelJob), job.metadata.name},
          {std::string(cluster::kLabelManagedBy), std::string(cluster::kManagedByValue)}};
}

std::string LabelSelector(const api::TrainingJob& job) {
  return std::string(cluster::kLabelJob) + "=" + job.metadata.name;
}

cluster::ClusterSpec JobCluster(const api::TrainingJob& job, const Settings& settings) {
  const cluster::HostNames names{.job = job.metadata.name,
                                 .namespace_name = job.metadata.namespace_name,
                                 .domain = settings.cluster_domain,
                                 .service_per_replica = Legacy(job)};
  cluster::ClusterSpec out;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      out.hosts[role].emplace_hint(out.hosts[role].end(), i,
                                   cluster::HostPort(names, {role, i}, replica.pod_template.port));
    }
  }
  return out;
}

std::string ClusterStamp(const api::TrainingJob& job, const Settings& settings) {
  cluster::ClusterSpec all = JobCluster(job, settings);
  if (ElasticBesideServers(job)) all.hosts.erase(Role::kWorker);
  // Processes that are sealed and those that are not cannot speak to each other.
  return cluster::ShortHash(cluster::ClusterText(all) + (Sealed(job, settings) ? " sealed" : ""));
}

bool SealedIfSeveral(const api::TrainingJob& job, const Settings& settings) {
  if (job.spec.program.empty()) return false;
  if (!job.spec.security.empty()) return job.spec.security == api::kMutualTls;
  if (!job.status.security.empty()) return job.status.security == api::kMutualTls;
  // A job that began under an operator that sealed nothing stays as it is: its processes could not
  // be replaced one by one.
  const bool fresh =
      !job.status.start_time && !job.status.conditions.contains(api::ConditionType::kRunning);
  return settings.seals && fresh;
}

bool Sealed(const api::TrainingJob& job, const Settings& settings) {
  return api::TotalReplicas(job.spec) > 1 && SealedIfSeveral(job, settings);
}

namespace internal {

// What `task` would be told if length were no matter; `shared` is ClusterText of the view without
// evaluators.
std::string UnboundedTfConfig(const api::TrainingJob& job, const cluster::ClusterSpec& all,
                              const std::string& shared, TaskId task) {
  if (all.size() <= 1) return {};  // a lone process needs to know nobody
  if (ElasticBesideServers(job) && (task.role == Role::kWorker || task.role == Role::kPs)) {
    const cluster::ClusterSpec view = cluster::ViewFor(all, task, Form::kSparse);
    if (Legacy(job)) return cluster::FormatSparseKubeflow(view, task);
    return cluster::FormatTfConfig({.cluster = view, .task = task});
  }
  if (Legacy(job)) return cluster::TfConfigText(cluster::ClusterText(all), task);
  if (task.role == Role::kEvaluator) {
    return cluster::FormatTfConfig(
        {.cluster = cluster::ViewFor(all, task, Form::kDense), .task = task});
  }
  return cluster::TfConfigText(shared, task);
}

std::string SharedClusterText(const cluster::ClusterSpec& all) {
  return cluster::ClusterText(cluster::ViewFor(all, {Role::kWorker, 0}, Form::kDense));
}

}  // namespace internal

namespace {
bool Fits(const std::string& text) {
  return cluster::FitsEnvironment(cluster::kEnvTfConfig.size(), text.size());
}
}  // namespace

std::string TfConfigFor(const api::TrainingJob& job, TaskId task, const Settings& settings) {
  const auto replica = job.spec.replica_specs.find(task.role);
  if (replica == job.spec.replica_specs.end() || replica->second.pod_template.has_tf_config) {
    return {};
  }
  const cluster::ClusterSpec all = JobCluster(job, settings);
  std::string text = internal::UnboundedTfConfig(job, all, internal::SharedClusterText(all), task);
  return Fits(text) ? text : std::string();
}

bool NeedsClusterFile(const api::TrainingJob& job, const Settings& settings) {
  // Small jobs are not worth formatting: a host is at most 63 + 63 + 63 + domain long.
  const size_t most = 3 * cluster::kMaxNameLength + settings.cluster_domain.size() + 64;
  if (static_cast<size_t>(api::TotalReplicas(job.spec)) * most < cluster::kMaxEnvironmentBytes) {
    return false;
  }
  const cluster::ClusterSpec all = JobCluster(job, settings);
  const std::string shared = internal::SharedClusterText(all);
  for (const auto& [role, replica] : job.spec.replica_specs) {
    if (replica.replicas < 1) continue;
    // The last index has the longest task.
    if (!Fits(internal::UnboundedTfConfig(job, all, shared, {role, replica.replicas - 1}))) {
      return true;
    }
  }
  return false;
}

}  // namespace meshtrain::reconcile
