#include "operator/control/queue/workload_view.h"

#include <nlohmann/json.hpp>

#include "operator/control/pod_view.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;

// The value at a path, or null.
json At(const json& object, const char* path) {
  const json::json_pointer at(path);
  return object.contains(at) ? object[at] : json(nullptr);
}
std::string TextAt(const json& object, const char* path) {
  const json value = At(object, path);
  return value.is_string() ? value.get<std::string>() : std::string();
}
int32_t NumberAt(const json& object, const char* path) {
  const json value = At(object, path);
  return value.is_number_integer() ? value.get<int32_t>() : 0;
}
std::string ListAt(const json& object, const char* path) {
  const json value = At(object, path);
  return value.is_array() ? value.dump(-1, ' ', false, json::error_handler_t::replace)
                          : std::string();
}

Result<json> Read(std::string_view text, const char* kind) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || TextAt(object, "/metadata/name").empty()) {
    return InvalidArgument(std::string(kind) + ": expected an object with a name, got: another");
  }
  return object;
}

}  // namespace

kube::Resource Workloads() { return {"kueue.x-k8s.io", "v1beta2", "workloads"}; }
kube::Resource ResourceFlavors() { return {"kueue.x-k8s.io", "v1beta2", "resourceflavors"}; }
kube::Resource WorkloadPriorityClasses() {
  return {"kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses"};
}
kube::Resource PriorityClasses() { return {"scheduling.k8s.io", "v1", "priorityclasses"}; }

Result<reconcile::WorkloadSeen> ParseWorkload(std::string_view text) {
  MT_ASSIGN_OR_RETURN(const Meta meta, ParseMeta(text));
  MT_ASSIGN_OR_RETURN(const json object, Read(text, "workload"));
  reconcile::WorkloadSeen seen{
      .name = meta.name,
      .uid = meta.uid,
      .resource_version = std::to_string(meta.version),
      .controller_uid = meta.controller_uid,
      .generation = NumberAt(object, "/metadata/generation"),
      .deleting = !TextAt(object, "/metadata/deletionTimestamp").empty(),
      .queue = TextAt(object, "/spec/queueName"),
      .priority_class = TextAt(object, "/spec/priorityClassRef/name"),
      .of_workloads = TextAt(object, "/spec/priorityClassRef/group") == "kueue.x-k8s.io",
      .active = At(object, "/spec/active") != json(false),
      .conditions = ListAt(object, "/status/conditions"),
      .checks = ListAt(object, "/status/admissionChecks"),
      .cluster_queue = TextAt(object, "/status/admission/clusterQueue")};
  // A key with a slash, which a path would take apart.
  const json annotations = At(object, "/metadata/annotations");
  const auto stamp = annotations.find(std::string(reconcile::kAnnotationPodSets));
  if (stamp != annotations.end() && stamp->is_string()) seen.stamp = *stamp;
  for (const json& set : At(object, "/spec/podSets")) {
    if (set.is_object()) seen.pod_sets[TextAt(set, "/name")] = NumberAt(set, "/count");
  }
  for (const json& given : At(object, "/status/admission/podSetAssignments")) {
    if (!given.is_object()) continue;
    reconcile::AssignmentSeen& assigned = seen.assigned[TextAt(given, "/name")];
    if (At(given, "/count").is_number_integer()) assigned.count = NumberAt(given, "/count");
    assigned.topology = At(given, "/topologyAssignment").is_object();
    for (const json& flavor : At(given, "/flavors")) {
      if (flavor.is_string()) assigned.flavors.insert(flavor.get<std::string>());
    }
  }
  return seen;
}

Result<std::pair<std::string, reconcile::FlavorSeen>> ParseFlavor(std::string_view text) {
  MT_ASSIGN_OR_RETURN(const json object, Read(text, "resourceflavor"));
  reconcile::FlavorSeen seen{.tolerations = ListAt(object, "/spec/tolerations")};
  const json labels = At(object, "/spec/nodeLabels");
  if (labels.is_object()) {
    for (const auto& [name, value] : labels.items()) {
      if (value.is_string()) seen.node_labels[name] = value.get<std::string>();
    }
  }
  return std::pair(TextAt(object, "/metadata/name"), std::move(seen));
}

Result<std::pair<std::string, reconcile::PriorityClassSeen>> ParsePriorityClass(
    std::string_view text) {
  MT_ASSIGN_OR_RETURN(const json object, Read(text, "priorityclass"));
  return std::pair(
      TextAt(object, "/metadata/name"),
      reconcile::PriorityClassSeen{.value = NumberAt(object, "/value"),
                                   .global_default = At(object, "/globalDefault") == json(true)});
}

}  // namespace meshtrain::control
