#include "operator/reconcile/workload.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/api/program.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/owner.h"
#include "runtime/base/time_text.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}
Json Parse(const std::string& text) {
  return Json::parse(text.empty() ? "null" : text, nullptr, /*allow_exceptions=*/false);
}
std::string Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// What Kueue reckons with of a pod, and what it compares with flavors. The rest (variables, files)
// would only be copied into etcd a second time.
constexpr const char* kOfContainers[] = {"name", "image", "resources", "restartPolicy"};
constexpr const char* kOfPods[] = {"nodeSelector",
                                   "affinity",
                                   "tolerations",
                                   "priorityClassName",
                                   "runtimeClassName",
                                   "overhead",
                                   "schedulerName",
                                   "restartPolicy",
                                   "resources",
                                   "resourceClaims",
                                   "topologySpreadConstraints"};

Json Containers(const Json& spec, const char* name) {
  Json out = Json::array();
  if (!spec.contains(name) || !spec[name].is_array()) return out;
  for (const Json& container : spec[name]) {
    Json kept = Json::object();
    for (const char* field : kOfContainers) {
      if (container.contains(field)) kept[field] = container[field];
    }
    out.push_back(std::move(kept));
  }
  return out;
}

Json PodSets(const api::TrainingJob& job, const Settings& settings) {
  Json sets = Json::array();
  const PodRenderer renderer(job, settings);
  for (const auto& [role, replica] : job.spec.replica_specs) {
    if (replica.replicas < 1) continue;
    const cluster::TaskId first{role, 0};
    const Json pod =
        Parse(renderer.Body({.name = cluster::PodName(job.metadata.name, first), .task = first}));
    const Json& spec = pod["spec"];
    Json kept = {{"containers", Containers(spec, "containers")}};
    if (Json first_ones = Containers(spec, "initContainers"); !first_ones.empty()) {
      kept["initContainers"] = std::move(first_ones);
    }
    for (const char* field : kOfPods) {
      if (spec.contains(field)) kept[field] = spec[field];
    }
    // By annotations a pod set asks Kueue for more than nodes.
    Json meta = Json::object();
    const Json given = Parse(replica.pod_template.json);
    for (const char* field : {"labels", "annotations"}) {
      const Json::json_pointer at(std::string("/metadata/") + field);
      if (given.is_object() && given.contains(at)) meta[field] = given[at];
    }
    sets.push_back({{"name", cluster::RoleName(role)},
                    {"count", replica.replicas},
                    {"template", {{"metadata", std::move(meta)}, {"spec", std::move(kept)}}}});
  }
  return sets;
}

// The PriorityClass that the job's pods name, as TFJob has it: the scheduling policy's first.
std::string PodPriorityClass(const api::TrainingJob& job) {
  const auto& policy = job.spec.run_policy.scheduling_policy;
  if (policy && !policy->priority_class.empty()) return policy->priority_class;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    const Json given = Parse(replica.pod_template.json);
    const Json::json_pointer at("/spec/priorityClassName");
    if (given.is_object() && given.contains(at) && given[at].is_string()) return given[at];
  }
  return {};
}

std::string LabelOf(const api::TrainingJob& job, std::string_view name) {
  const auto found = job.metadata.labels.find(std::string(name));
  return found == job.metadata.labels.end() ? std::string() : found->second;
}

Json ClassReference(bool of_workloads, const std::string& name) {
  return {{"group", of_workloads ? "kueue.x-k8s.io" : "scheduling.k8s.io"},
          {"kind", of_workloads ? "WorkloadPriorityClass" : "PriorityClass"},
          {"name", name}};
}

// Fills in `spec`'s priority and whence it is; without a class 0, as Kueue's own jobs have.
Status AddPriority(const api::TrainingJob& job, const QueueSeen& queue, Json* spec) {
  std::string name = LabelOf(job, kLabelPriorityClass);
  const bool of_workloads = !name.empty();
  if (name.empty()) name = PodPriorityClass(job);
  const auto& classes = of_workloads ? queue.workload_priorities : queue.pod_priorities;
  auto found = classes.find(name);
  if (!name.empty() && found == classes.end()) {
    return NotFound(std::string(of_workloads ? "WorkloadPriorityClass" : "PriorityClass") + " " +
                    name + ": expected one of that name, got: none");
  }
  if (name.empty()) {
    for (auto at = classes.begin(); at != classes.end(); ++at) {
      if (!at->second.global_default) continue;
      if (found == classes.end() || at->second.value < found->second.value) found = at;
    }
  }
  (*spec)["priority"] = found == classes.end() ? 0 : found->second.value;
  (*spec)["priorityClassRef"] =
      found == classes.end() ? Json(nullptr) : ClassReference(of_workloads, found->first);
  return OkStatus();
}

Result<Json> SpecOf(const api::TrainingJob& job, const Observed& seen) {
  Json spec = {{"queueName", QueueName(job)}, {"podSets", PodSets(job, seen.settings)}};
  MT_RETURN_IF_ERROR(AddPriority(job, seen.queue, &spec));
  return spec;
}

Json Precondition(const WorkloadSeen& workload) {
  return {{"uid", workload.uid}, {"resourceVersion", workload.resource_version}};
}

}  // namespace

std::string QueueName(const api::TrainingJob& job) { return LabelOf(job, kLabelQueue); }

std::string WorkloadName(const api::TrainingJob& job) {
  return "trainingjob-" + job.metadata.name + "-" + cluster::ShortHash(job.metadata.uid);
}

std::map<std::string, int32_t> PodSetCounts(const api::TrainingJob& job) {
  std::map<std::string, int32_t> counts;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    if (replica.replicas > 0) counts[std::string(cluster::RoleName(role))] = replica.replicas;
  }
  return counts;
}

std::string PodSetsStamp(const api::TrainingJob& job) {
  std::string all;
  for (const auto& [role, replica] : job.spec.replica_specs) {
    all += std::string(cluster::RoleName(role)) + "\n" + replica.pod_template.json + "\n";
  }
  // What the program asks nodes for, where it does: pods ask for it too (pod_devices.cc).
  if (const mesh::TpuSlice* slice = api::SliceOf(job)) all += std::string(slice->name) + "\n";
  if (const int64_t gpus = api::GpusOf(job); gpus > 0) all += std::to_string(gpus) + " GPUs\n";
  return cluster::ShortHash(all);
}

Result<CreateWorkload> NewWorkload(const api::TrainingJob& job, const Observed& seen) {
  MT_ASSIGN_OR_RETURN(Json spec, SpecOf(job, seen));
  if (spec["priorityClassRef"].is_null()) spec.erase("priorityClassRef");
  Json labels = SelectorLabels(job);
  labels["kueue.x-k8s.io/job-uid"] = job.metadata.uid;
  Json annotations = {{kAnnotationPodSets, PodSetsStamp(job)}};
  // What Kueue hands on to those who provide nodes.
  for (const auto& [name, value] : job.metadata.annotations) {
    if (name.starts_with("provreq.kueue.x-k8s.io/")) annotations[name] = value;
  }
  const std::string name = WorkloadName(job);
  const Json body = {{"apiVersion", "kueue.x-k8s.io/v1beta2"},
                     {"kind", "Workload"},
                     {"metadata",
                      {{"name", name},
                       {"namespace", job.metadata.namespace_name},
                       {"labels", std::move(labels)},
                       {"annotations", std::move(annotations)},
                       {"ownerReferences", Json::array({Parse(OwnerReference(job))})}}},
                     {"spec", std::move(spec)}};
  return CreateWorkload{.name = name, .body = Dump(body)};
}

Result<PatchWorkload> RenewWorkload(const api::TrainingJob& job, const Observed& seen,
                                    const WorkloadSeen& workload) {
  MT_ASSIGN_OR_RETURN(Json spec, SpecOf(job, seen));
  Json meta = Precondition(workload);
  meta["annotations"] = {{kAnnotationPodSets, PodSetsStamp(job)}};
  return PatchWorkload{.name = workload.name,
                       .body = Dump({{"metadata", std::move(meta)}, {"spec", std::move(spec)}})};
}

std::optional<PatchWorkload> RaiseWorkload(const api::TrainingJob& job, const Observed& seen,
                                           const WorkloadSeen& workload, bool reserved) {
  const std::string wanted = LabelOf(job, kLabelPriorityClass);
  const std::string has = workload.of_workloads ? workload.priority_class : std::string();
  if (wanted == has) return std::nullopt;
  // The API server keeps the kind of class as it is while there is quota; it may change from one
  // WorkloadPriorityClass to another.
  if (reserved && (wanted.empty() || !workload.of_workloads)) return std::nullopt;
  Json spec = Json::object();
  if (!AddPriority(job, seen.queue, &spec).ok()) return std::nullopt;
  return PatchWorkload{
      .name = workload.name,
      .body = Dump({{"metadata", Precondition(workload)}, {"spec", std::move(spec)}})};
}

WorkloadStatus::WorkloadStatus(const WorkloadSeen& workload)
    : workload_(workload), conditions_(workload.conditions) {}

bool WorkloadStatus::Is(const std::string& type) const {
  const auto found = Find(type);
  return found && found->status;
}

std::optional<WorkloadCondition> WorkloadStatus::Find(const std::string& type) const {
  const Json conditions = Parse(conditions_);
  if (!conditions.is_array()) return std::nullopt;
  for (const Json& condition : conditions) {
    if (!condition.is_object() || Text(condition, "type") != type) continue;
    return WorkloadCondition{.status = Text(condition, "status") == "True",
                             .reason = Text(condition, "reason"),
                             .message = Text(condition, "message")};
  }
  return std::nullopt;
}

void WorkloadStatus::Set(const std::string& type, WorkloadCondition condition, TimePoint now) {
  Json conditions = Parse(conditions_);
  if (!conditions.is_array()) conditions = Json::array();
  const auto found = std::find_if(conditions.begin(), conditions.end(), [&](const Json& other) {
    return other.is_object() && Text(other, "type") == type;
  });
  const char* word = condition.status ? "True" : "False";
  std::string since = FormatTime(now);
  if (found != conditions.end() && Text(*found, "status") == word) {
    since = Text(*found, "lastTransitionTime");
  }
  Json next = {{"type", type},
               {"status", word},
               {"reason", std::move(condition.reason)},
               {"message", std::move(condition.message)},
               {"lastTransitionTime", std::move(since)},
               {"observedGeneration", workload_.generation}};
  if (found != conditions.end()) {
    *found = std::move(next);
  } else {
    conditions.push_back(std::move(next));
  }
  conditions_ = Dump(conditions);
}

PatchWorkload WorkloadStatus::Patch(bool give_back) const {
  Json status = {{"conditions", Parse(conditions_)}};
  if (give_back) status["admission"] = nullptr;
  return PatchWorkload{
      .name = workload_.name,
      .body = Dump({{"metadata", Precondition(workload_)}, {"status", std::move(status)}}),
      .status = true};
}

std::string PendingChecks(const WorkloadSeen& workload) {
  std::string out;
  const Json checks = Parse(workload.checks);
  if (!checks.is_array()) return out;
  for (const Json& check : checks) {
    if (!check.is_object() || Text(check, "state") == "Ready") continue;
    if (!out.empty()) out += "; ";
    out += Text(check, "name") + " (" + Text(check, "state") + ")";
    if (const std::string message = Text(check, "message"); !message.empty()) {
      out += ": " + message;
    }
  }
  return out;
}

namespace {

void AddTolerations(const Json& tolerations, Placement* place) {
  if (!tolerations.is_array()) return;
  for (const Json& toleration : tolerations) {
    std::string text = Dump(toleration);
    const auto& all = place->tolerations;
    if (std::find(all.begin(), all.end(), text) == all.end()) {
      place->tolerations.push_back(std::move(text));
    }
  }
}

void AddTexts(const Json& object, const char* name, std::map<std::string, std::string>* out) {
  if (!object.contains(name) || !object[name].is_object()) return;
  for (const auto& [key, value] : object[name].items()) {
    if (value.is_string()) (*out)[key] = value.get<std::string>();
  }
}

// What admission checks, as one that provides nodes, say of a pod set.
void AddUpdates(const Json& checks, const std::string& name, Placement* place) {
  if (!checks.is_array()) return;
  for (const Json& check : checks) {
    if (!check.is_object() || !check.contains("podSetUpdates") ||
        !check["podSetUpdates"].is_array()) {
      continue;
    }
    for (const Json& update : check["podSetUpdates"]) {
      if (!update.is_object() || Text(update, "name") != name) continue;
      AddTexts(update, "nodeSelector", &place->node_selector);
      AddTexts(update, "labels", &place->labels);
      AddTexts(update, "annotations", &place->annotations);
      if (update.contains("tolerations")) AddTolerations(update["tolerations"], place);
    }
  }
}

}  // namespace

Result<Placements> PlacementsOf(const api::TrainingJob& job, const QueueSeen& queue) {
  Placements out;
  const WorkloadSeen& workload = *queue.workload;
  const Json checks = Parse(workload.checks);
  for (const auto& [role, replica] : job.spec.replica_specs) {
    if (replica.replicas < 1) continue;
    const std::string name(cluster::RoleName(role));
    const auto assigned = workload.assigned.find(name);
    const auto asked = workload.pod_sets.find(name);
    if (assigned == workload.assigned.end() || asked == workload.pod_sets.end()) {
      return NotFound("pod set " + name + ": expected an assignment of it, got: none");
    }
    if (assigned->second.count.value_or(asked->second) != asked->second) {
      return Unimplemented("pod set " + name + ": expected all " + std::to_string(asked->second) +
                           " pods to be admitted, got: " + std::to_string(*assigned->second.count));
    }
    if (assigned->second.topology) {
      return Unimplemented("pod set " + name +
                           ": expected flavors without a topology, got: one whose nodes Kueue "
                           "chooses itself");
    }
    Placement& place = out[role];
    for (const std::string& flavor : assigned->second.flavors) {
      const auto found = queue.flavors.find(flavor);
      if (found == queue.flavors.end()) {
        return NotFound("ResourceFlavor " + flavor + ": expected one of that name, got: none");
      }
      for (const auto& [label, value] : found->second.node_labels) {
        place.node_selector[label] = value;
      }
      AddTolerations(Parse(found->second.tolerations), &place);
    }
    AddUpdates(checks, name, &place);
    const Json given = Parse(replica.pod_template.json);
    const Json::json_pointer at("/spec/nodeSelector");
    if (!given.is_object() || !given.contains(at) || !given[at].is_object()) continue;
    for (const auto& [label, value] : place.node_selector) {
      const std::string own = Text(given[at], label.c_str());
      if (!own.empty() && own != value) {
        return InvalidArgument("pod set " + name + ": expected nodes with " + label + "=" + value +
                               ", got a template that asks for " + label + "=" + own);
      }
    }
  }
  return out;
}

}  // namespace meshtrain::reconcile
