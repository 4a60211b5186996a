#include "operator/reconcile/children.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "operator/reconcile/owner.h"
#include "operator/reconcile/pod_parts.h"
#include "runtime/cluster/stop_grace.h"

namespace meshtrain::reconcile {

namespace internal {
std::string UnboundedTfConfig(const api::TrainingJob& job, const cluster::ClusterSpec& all,
                              const std::string& shared, cluster::TaskId task);
std::string SharedClusterText(const cluster::ClusterSpec& all);
}  // namespace internal

namespace {

using Json = nlohmann::json;
using cluster::TaskId;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}
std::string Text(std::string_view text) { return std::string(text); }

Json Meta(const api::TrainingJob& job, const std::string& name) {
  return {{"name", name},
          {"namespace", job.metadata.namespace_name},
          {"labels", SelectorLabels(job)},
          {"ownerReferences", Json::array({Json::parse(OwnerReference(job))})}};
}

constexpr const char* kDefaultContainer = "kubectl.kubernetes.io/default-container";

// Labels by which tools for TFJob find a job's pods (training-operator v1,
// pkg/apis/kubeflow.org/v1, common_types.go). Its operator-name is left out: these pods are not its
// own.
std::map<std::string, std::string> KubeflowLabels(const api::TrainingJob& job, TaskId task) {
  std::map<std::string, std::string> labels = {
      {"training.kubeflow.org/job-name", job.metadata.name},
      {"training.kubeflow.org/replica-type", Text(cluster::RoleName(task.role))},
      {"training.kubeflow.org/replica-index", std::to_string(task.index)}};
  if (api::Leader(job.spec) == task) labels["training.kubeflow.org/job-role"] = "master";
  return labels;
}

std::map<std::string, std::string> ReplicaLabels(const api::TrainingJob& job, TaskId task) {
  auto labels = SelectorLabels(job);
  labels[Text(cluster::kLabelRole)] = Text(cluster::RoleName(task.role));
  labels[Text(cluster::kLabelIndex)] = std::to_string(task.index);
  return labels;
}

std::string NameOf(const Json& item) {
  if (!item.is_object()) return {};
  const auto name = item.find("name");
  return name != item.end() && name->is_string() ? name->get<std::string>() : std::string();
}

// The member as an object, whatever stood there.
Json& Object(Json* parent, const char* name) {
  Json& member = (*parent)[name];
  if (!member.is_object()) member = Json::object();
  return member;
}

// Names not in the list, put at its end: what the user gave wins.
void AddNamed(Json* list, Json item) {
  if (!list->is_array()) *list = Json::array();
  for (const Json& other : *list) {
    if (NameOf(other) == NameOf(item)) return;
  }
  list->push_back(std::move(item));
}

void AddVariable(Json* container, std::string_view name, std::string value) {
  internal::AddVariable({container}, name, std::move(value));
}

std::string ClusterMapName(const api::TrainingJob& job, const std::string& cluster_text) {
  // Equal texts share a map, others never meet.
  return job.metadata.name + "-cluster-" + cluster::ShortHash(job.metadata.uid) + "-" +
         cluster::ShortHash(cluster_text);
}

Json* TrainingContainer(Json* spec, const std::string& name) {
  Json& containers = (*spec)["containers"];
  if (!containers.is_array() || containers.empty()) containers = Json::array({Json::object()});
  for (Json& container : containers) {
    if (container.is_object() && NameOf(container) == name) return &container;
  }
  if (!containers.front().is_object()) containers.front() = Json::object();
  return &containers.front();
}

bool HasPort(const Json& container, std::string_view name) {
  const auto ports = container.find("ports");
  if (ports == container.end() || !ports->is_array()) return false;
  for (const Json& port : *ports) {
    if (NameOf(port) == name) return true;
  }
  return false;
}

// What was admitted goes into the pod, never into the job: the next admission may choose others.
void Place(const Placement& place, Json* meta, Json* spec) {
  for (const auto& [name, value] : place.labels) Object(meta, "labels")[name] = value;
  for (const auto& [name, value] : place.annotations) Object(meta, "annotations")[name] = value;
  for (const auto& [name, value] : place.node_selector) {
    Object(spec, "nodeSelector")[name] = value;
  }
  for (const std::string& text : place.tolerations) {
    const Json toleration = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    Json& all = (*spec)["tolerations"];
    if (!all.is_array()) all = Json::array();
    if (std::find(all.begin(), all.end(), toleration) == all.end()) all.push_back(toleration);
  }
}

Json CheckpointJson(const api::Checkpoint& checkpoint, const std::string& path) {
  Json out = {{"resume", checkpoint.resume}};
  if (!path.empty()) out["path"] = path;
  if (checkpoint.every_steps) out["everySteps"] = *checkpoint.every_steps;
  if (checkpoint.keep) out["keep"] = *checkpoint.keep;
  return out;
}

}  // namespace

void internal::AddVariable(JsonRef container, std::string_view name, std::string value) {
  if (!cluster::FitsEnvironment(name.size(), value.size())) return;
  AddNamed(&(*static_cast<Json*>(container.json))["env"],
           {{"name", name}, {"value", std::move(value)}});
}

PodRenderer::~PodRenderer() = default;
PodRenderer::PodRenderer(const api::TrainingJob& job, const Settings& settings,
                         const Placements& placements)
    : job_(job),
      settings_(settings),
      placements_(placements),
      cluster_(JobCluster(job, settings)),
      cluster_text_(internal::SharedClusterText(cluster_)),
      cluster_stamp_(ClusterStamp(job, settings)),
      devices_(std::make_unique<internal::Devices>(internal::FindDevices(job, cluster_))) {
  if (NeedsClusterFile(job, settings)) cluster_map_name_ = ClusterMapName(job, cluster_text_);
}

std::string PodRenderer::Body(const CreatePod& pod) const {
  const api::ReplicaSpec& replica = job_.spec.replica_specs.at(pod.task.role);
  const api::PodTemplate& given = replica.pod_template;
  Json body = given.json.empty() ? Json::object() : Json::parse(given.json, nullptr, false);
  if (!body.is_object()) body = Json::object();
  Json meta =
      body.contains("metadata") && body["metadata"].is_object() ? body["metadata"] : Json::object();
  for (const auto& [name, value] : ReplicaLabels(job_, pod.task)) {
    Object(&meta, "labels")[name] = value;
  }
  const bool leads = api::Leader(job_.spec) == pod.task;
  if (leads) Object(&meta, "labels")[Text(cluster::kLabelLeader)] = "true";
  if (job_.spec.tf_config_compat == api::kCompatKubeflowV1) {
    for (const auto& [name, value] : KubeflowLabels(job_, pod.task)) {
      Object(&meta, "labels")[name] = value;
    }
  }
  Json& annotations = Object(&meta, "annotations");
  annotations[Text(cluster::kAnnotationAttempt)] = std::to_string(pod.attempt);
  annotations[Text(cluster::kAnnotationCluster)] = cluster_stamp_;
  annotations[Text(cluster::kAnnotationJobUid)] = job_.metadata.uid;
  meta["name"] = pod.name;
  meta["namespace"] = job_.metadata.namespace_name;
  meta["ownerReferences"] = Json::array({Json::parse(OwnerReference(job_))});
  for (const char* ours : {"generateName", "uid", "resourceVersion", "creationTimestamp"}) {
    meta.erase(ours);
  }

  Json spec = body.contains("spec") && body["spec"].is_object() ? body["spec"] : Json::object();
  spec["restartPolicy"] = replica.restart_policy == api::kRestartExitCode ? Text(api::kRestartNever)
                                                                          : replica.restart_policy;
  spec["hostname"] = pod.name;
  spec["subdomain"] = job_.metadata.name;
  // Else every Service of the namespace becomes variables of the container.
  if (!spec.contains("enableServiceLinks")) spec["enableServiceLinks"] = false;
  if (settings_.gang != GangScheduler::kNone) {
    if (!spec.contains("schedulerName")) {
      spec["schedulerName"] = GangSchedulerName(settings_);
    }
    if (settings_.gang == GangScheduler::kVolcano) {
      Object(&meta, "annotations")["scheduling.k8s.io/group-name"] = job_.metadata.name;
      Object(&meta, "annotations")["volcano.sh/task-spec"] = cluster::RoleName(pod.task.role);
    } else {
      Object(&meta, "labels")["scheduling.x-k8s.io/pod-group"] = job_.metadata.name;
    }
  }

  Json* container = TrainingContainer(&spec, given.training_container);
  const bool declared = !job_.spec.program.empty();
  const bool ours = declared && !given.has_image;
  if (!container->contains("name")) (*container)["name"] = cluster::kTrainingContainers[0];
  // Without a word from the program the last lines of its log are its last words.
  if (!container->contains("terminationMessagePolicy")) {
    (*container)["terminationMessagePolicy"] = "FallbackToLogsOnError";
  }
  // So that kubectl logs and exec mean the container that trains.
  if (!NameOf(*container).empty() && !meta["annotations"].contains(kDefaultContainer)) {
    meta["annotations"][kDefaultContainer] = NameOf(*container);
  }
  if (declared && !container->contains("image")) (*container)["image"] = settings_.worker_image;
  if (!given.has_port) {
    AddNamed(&(*container)["ports"],
             {{"name", cluster::kTrainingPortName}, {"containerPort", given.port}});
  }
  if (declared && !HasPort(*container, cluster::kHttpPortName)) {
    AddNamed(&(*container)["ports"],
             {{"name", cluster::kHttpPortName}, {"containerPort", cluster::kHttpPort}});
  }

  const std::string tf_config =
      given.has_tf_config ? std::string()
                          : internal::UnboundedTfConfig(job_, cluster_, cluster_text_, pod.task);
  if (!tf_config.empty()) AddVariable(container, cluster::kEnvTfConfig, tf_config);
  AddVariable(container, cluster::kEnvJob, job_.metadata.namespace_name + "/" + job_.metadata.name);
  AddVariable(container, cluster::kEnvRole, Text(cluster::RoleName(pod.task.role)));
  AddVariable(container, cluster::kEnvIndex, std::to_string(pod.task.index));
  AddVariable(container, cluster::kEnvAttempt, std::to_string(pod.attempt));
  if (!cluster_map_name_.empty()) {
    AddVariable(container, cluster::kEnvClusterFile,
                Text(cluster::kClusterMountPath) + "/" + Text(cluster::kClusterFileName));
    internal::Mount({&spec}, {container}, "meshtrain-cluster",
                    Dump({{"configMap", {{"name", cluster_map_name_}}}}),
                    cluster::kClusterMountPath);
  }
  if (!job_.spec.strategy.empty()) {
    AddVariable(container, cluster::kEnvStrategy, job_.spec.strategy);
  }
  if (declared) {
    AddVariable(container, cluster::kEnvProgram, job_.spec.program);
    if (const auto& seconds = job_.spec.run_policy.peer_return_seconds) {
      AddVariable(container, cluster::kEnvPeerReturn, std::to_string(*seconds));
    }
    const auto grace = spec.find("terminationGracePeriodSeconds");
    if (grace != spec.end() && grace->is_number_integer()) {
      AddVariable(container, cluster::kEnvStopGrace,
                  std::to_string(std::max<int64_t>(0, grace->get<int64_t>())));
    }
    AddVariable(container, cluster::kEnvTokenFile,
                Text(cluster::kTokenMountPath) + "/" + Text(cluster::kTokenFileName));
    if (ours) internal::AddSecurity(settings_.fs_group, {&spec}, {container});
    internal::Mount(
        {&spec}, {container}, "meshtrain-token",
        Dump({{"secret",
               {{"secretName", cluster::TokenSecretName(job_.metadata.name, job_.metadata.uid)},
                {"defaultMode", internal::TokenMode({&spec})}}}}),
        cluster::kTokenMountPath);
    if (Sealed(job_, settings_)) {
      for (const auto& [variable, file] :
           {std::pair(cluster::kEnvTlsCa, cluster::kTlsCaFileName),
            std::pair(cluster::kEnvTlsCertificate, cluster::kTlsCertificateFileName),
            std::pair(cluster::kEnvTlsKey, cluster::kTlsKeyFileName)}) {
        AddVariable(container, variable, Text(cluster::kTlsMountPath) + "/" + Text(file));
      }
      internal::Mount(
          {&spec}, {container}, "meshtrain-tls",
          Dump({{"secret",
                 {{"secretName", cluster::TlsSecretName(job_.metadata.name, job_.metadata.uid)},
                  {"defaultMode", internal::TokenMode({&spec})}}}}),
          cluster::kTlsMountPath);
    }
  }
  const std::string checkpoint_path = CheckpointPath(job_);
  if (job_.spec.checkpoint || !checkpoint_path.empty()) {
    const api::Checkpoint checkpoint = job_.spec.checkpoint.value_or(api::Checkpoint{});
    AddVariable(container, cluster::kEnvCheckpoint,
                Dump(CheckpointJson(checkpoint, checkpoint_path)));
    if (!checkpoint.volume_claim_template.empty()) {
      internal::Mount({&spec}, {container}, "meshtrain-checkpoint",
                      Dump({{"persistentVolumeClaim",
                             {{"claimName", cluster::CheckpointClaimName(job_.metadata.name,
                                                                         job_.metadata.uid)}}}}),
                      internal::InContainer(given, checkpoint.path), /*read_only=*/false);
    }
  }
  if (const std::string output = OutputFolder(job_, pod.task); !output.empty()) {
    AddVariable(container, cluster::kEnvOutput, output);
  }
  internal::AddStorage(job_, pod.task, ours, {&spec}, {container});
  internal::AddDevices(job_, *devices_, cluster_, pod.task, {&spec}, {container});
  if (const auto place = placements_.find(pod.task.role); place != placements_.end()) {
    Place(place->second, &meta, &spec);
  }
  return Dump({{"apiVersion", "v1"},
               {"kind", "Pod"},
               {"metadata", std::move(meta)},
               {"spec", std::move(spec)}});
}

std::string PodBody(const api::TrainingJob& job, const Settings& settings, const CreatePod& pod,
                    const Placements& placements) {
  return PodRenderer(job, settings, placements).Body(pod);
}

std::vector<CreateService> WantedServices(const api::TrainingJob& job) {
  const auto service = [&](const std::string& name,
                           const std::map<std::string, std::string>& selector, int32_t port) {
    const Json body = {
        {"apiVersion", "v1"},
        {"kind", "Service"},
        {"metadata", Meta(job, name)},
        {"spec",
         {{"clusterIP", "None"},
          {"publishNotReadyAddresses", true},
          {"selector", selector},
          {"ports", Json::array({{{"name", cluster::kTrainingPortName}, {"port", port}}})}}}};
    return CreateService{.name = name, .body = Dump(body)};
  };
  std::vector<CreateService> out;
  out.push_back(service(job.metadata.name, SelectorLabels(job), cluster::kTrainingPort));
  if (job.spec.tf_config_compat == api::kCompatKubeflowV1) {
    for (const auto& [role, replica] : job.spec.replica_specs) {
      for (int32_t i = 0; i < replica.replicas; ++i) {
        const TaskId task{role, i};
        out.push_back(service(cluster::PodName(job.metadata.name, task), ReplicaLabels(job, task),
                              replica.pod_template.port));
      }
    }
  }
  return out;
}

namespace {

std::string SecretBody(const api::TrainingJob& job, const std::string& name, const char* type) {
  return Dump({{"apiVersion", "v1"},
               {"kind", "Secret"},
               {"metadata", Meta(job, name)},
               {"type", type},
               {"immutable", true},
               {"stringData", Json::object()}});
}

}  // namespace

CreateSecret TokenSecret(const api::TrainingJob& job, bool probe) {
  const std::string name = cluster::TokenSecretName(job.metadata.name, job.metadata.uid);
  return {.name = name,
          .key = Text(cluster::kTokenFileName),
          .body = SecretBody(job, name, "Opaque"),
          .hosts = {},
          .probe = probe};
}

CreateSecret TlsSecret(const api::TrainingJob& job, const Settings& settings, bool probe) {
  const std::string name = cluster::TlsSecretName(job.metadata.name, job.metadata.uid);
  // One certificate for all processes, whatever their number becomes: they share the token as well.
  std::set<std::string> hosts;
  for (const auto& [role, of_role] : JobCluster(job, settings).hosts) {
    for (const auto& [index, host] : of_role) {
      const std::string address = host.substr(0, host.rfind(':'));
      hosts.insert("*" + address.substr(std::min(address.find('.'), address.size())));
    }
  }
  return {.name = name,
          .key = {},
          .body = SecretBody(job, name, "kubernetes.io/tls"),
          .hosts = {hosts.begin(), hosts.end()},
          .probe = probe};
}

CreateClaim CheckpointClaim(const api::TrainingJob& job) {
  const std::string name = cluster::CheckpointClaimName(job.metadata.name, job.metadata.uid);
  Json body = Json::parse(job.spec.checkpoint ? job.spec.checkpoint->volume_claim_template : "{}",
                          nullptr, false);
  if (!body.is_object()) body = Json::object();
  Json meta = Meta(job, name);
  if (body.contains("metadata") && body["metadata"].is_object()) {
    for (const char* part : {"labels", "annotations"}) {
      const auto given = body["metadata"].find(part);
      if (given == body["metadata"].end() || !given->is_object()) continue;
      for (const auto& [key, value] : given->items()) {
        if (!meta.contains(part) || !meta[part].contains(key)) meta[part][key] = value;
      }
    }
  }
  Json spec = body.contains("spec") ? body["spec"] : Json::object();
  return {.name = name,
          .body = Dump({{"apiVersion", "v1"},
                        {"kind", "PersistentVolumeClaim"},
                        {"metadata", std::move(meta)},
                        {"spec", std::move(spec)}})};
}

CreateConfigMap ClusterMap(const api::TrainingJob& job, const Settings& settings, bool probe) {
  const std::string text = internal::SharedClusterText(JobCluster(job, settings));
  const std::string name = ClusterMapName(job, text);
  return {
      .name = name,
      .body = Dump({{"apiVersion", "v1"},
                    {"kind", "ConfigMap"},
                    {"metadata", Meta(job, name)},
                    {"immutable", true},
                    {"data", {{Text(cluster::kClusterFileName), "{\"cluster\":" + text + "}"}}}}),
      .probe = probe};
}

std::string AdoptBody(const api::TrainingJob& job, const AdoptPod& pod) {
  return Dump(
      {{"metadata",
        {{"uid", pod.uid}, {"ownerReferences", Json::array({Json::parse(OwnerReference(job))})}}}});
}

std::string ReleaseBody(const api::TrainingJob& job, const ReleasePod& pod) {
  return Dump({{"metadata",
                {{"uid", pod.uid},
                 {"ownerReferences",
                  Json::array({Json{{"$patch", "delete"}, {"uid", job.metadata.uid}}})}}}});
}

}  // namespace meshtrain::reconcile
