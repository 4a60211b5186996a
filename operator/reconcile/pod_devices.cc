// TPUs and GPUs of a pod.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/api/program.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/pod_parts.h"
#include "runtime/base/text.h"

namespace meshtrain::reconcile::internal {
namespace {

using Json = nlohmann::json;

constexpr const char* kTpu = "google.com/tpu";
constexpr const char* kGpu = "nvidia.com/gpu";
constexpr const char* kNodeChips = "cloud.google.com/gke-tpu-accelerator";
constexpr const char* kNodeShape = "cloud.google.com/gke-tpu-topology";

// The container that trains, by the template's own name for it; null: none was given.
const Json* Training(const Json& pod, const std::string& name) {
  const Json* found = nullptr;
  const auto spec = pod.is_object() ? pod.find("spec") : pod.end();
  if (!pod.is_object() || spec == pod.end() || !spec->is_object()) return nullptr;
  const auto containers = spec->find("containers");
  if (containers == spec->end() || !containers->is_array()) return nullptr;
  for (const Json& container : *containers) {
    if (!container.is_object()) continue;
    if (found == nullptr) found = &container;
    const auto called = container.find("name");
    if (called != container.end() && *called == name) return &container;
  }
  return found;
}

// How many of a resource, which extended ones state as a whole number; requests where there are no
// limits, which are the same then.
int64_t Asked(const Json& container, const char* resource) {
  const auto resources = container.find("resources");
  if (resources == container.end() || !resources->is_object()) return 0;
  for (const char* part : {"limits", "requests"}) {
    const auto amounts = resources->find(part);
    if (amounts == resources->end() || !amounts->is_object()) continue;
    const auto amount = amounts->find(resource);
    if (amount == amounts->end()) continue;
    if (amount->is_number_integer()) return amount->get<int64_t>();
    if (amount->is_string()) return ParseInt(amount->get<std::string>()).value_or(0);
  }
  return 0;
}

std::string HostOf(const cluster::ClusterSpec& all, cluster::TaskId task) {
  const std::string host = all.host(task);
  return host.substr(0, host.rfind(':'));
}

// What the templates ask for.
Devices::Asked Asked(const api::PodTemplate& given) {
  if (given.json.find(kTpu) == std::string::npos && given.json.find(kGpu) == std::string::npos) {
    return {};  // most jobs, without parsing
  }
  const Json pod = Json::parse(given.json, nullptr, false);
  const Json* container = Training(pod, given.training_container);
  if (container == nullptr) return {};
  return {.tpus = Asked(*container, kTpu), .gpus = Asked(*container, kGpu)};
}

// GKE's names of the kinds of chips, as nodes are labelled with them.
std::string_view NodeLabel(const mesh::TpuSlice& slice) {
  constexpr std::pair<std::string_view, std::string_view> kLabels[] = {
      {"v4", "tpu-v4-podslice"},
      {"v5e", "tpu-v5-lite-podslice"},
      {"v5p", "tpu-v5p-slice"},
      {"v6e", "tpu-v6e-slice"}};
  for (const auto& [generation, label] : kLabels) {
    if (generation == slice.generation) return label;
  }
  return {};
}

void AskFor(const char* resource, int64_t count, Json& container) {
  Json& resources = container["resources"];
  if (!resources.is_object()) resources = Json::object();
  Json& limits = resources["limits"];
  if (!limits.is_object()) limits = Json::object();
  limits[resource] = count;
}

void AskForSlice(const mesh::TpuSlice& slice, Json& spec, Json& container) {
  AskFor(kTpu, slice.chips, container);
  // Another cloud's nodes, or a cluster of one's own, have other labels: a template that chooses
  // its node by any of these is left to it.
  Json& labels = spec["nodeSelector"];
  if (!labels.is_object()) labels = Json::object();
  if (labels.contains(kNodeChips) || labels.contains(kNodeShape)) return;
  labels[kNodeChips] = NodeLabel(slice);
  labels[kNodeShape] = slice.topology;
}

}  // namespace

Devices FindDevices(const api::TrainingJob& job, const cluster::ClusterSpec& all) {
  Devices devices;
  const mesh::TpuSlice* slice = api::SliceOf(job);
  const int64_t gpus = api::GpusOf(job);
  for (const auto& [role, replica] : job.spec.replica_specs) {
    Devices::Asked asked = Asked(replica.pod_template);
    // Parameter servers hold variables in the host's memory, and their chief computes nothing.
    const bool computes =
        role != api::Role::kPs &&
        (role != api::Role::kChief || job.spec.strategy != api::kStrategyParameterServer);
    if (slice != nullptr && computes && asked.tpus <= 0) {
      asked.tpus = slice->chips;
      asked.slice = slice;
    }
    if (gpus > 0 && computes && asked.gpus <= 0) {
      asked.gpus = gpus;
      asked.gpus_of_program = true;
    }
    devices.roles[role] = asked;
    if (asked.tpus <= 0 || asked.slice != nullptr) continue;
    for (int32_t i = 0; i < replica.replicas; ++i) {
      devices.tpu_tasks.push_back({role, i});
      devices.tpu_hosts += (devices.tpu_hosts.empty() ? "" : ",") + HostOf(all, {role, i});
    }
  }
  return devices;
}

void AddDevices(const api::TrainingJob& job, const Devices& devices,
                const cluster::ClusterSpec& all, cluster::TaskId task, JsonRef spec,
                JsonRef container) {
  const auto of_role = devices.roles.find(task.role);
  const Devices::Asked mine = of_role == devices.roles.end() ? Devices::Asked{} : of_role->second;
  if (mine.slice != nullptr) {
    AskForSlice(*mine.slice, *static_cast<Json*>(spec.json), *static_cast<Json*>(container.json));
    AddVariable(container, "TPU_WORKER_ID", "0");
    AddVariable(container, "TPU_WORKER_HOSTNAMES", HostOf(all, task));
  } else if (mine.tpus > 0) {
    const auto place = std::find(devices.tpu_tasks.begin(), devices.tpu_tasks.end(), task);
    AddVariable(container, "TPU_WORKER_ID",
                std::to_string(std::distance(devices.tpu_tasks.begin(), place)));
    AddVariable(container, "TPU_WORKER_HOSTNAMES", devices.tpu_hosts);
    // TensorFlow's TPUClusterResolver without arguments: the TPU is this host's. One of several
    // hosts it reaches by addresses that only Cloud TPU's own servers have.
    if (job.spec.strategy == "TPU" && devices.tpu_tasks.size() == 1) {
      AddVariable(container, "TPU_NAME", "local");
    }
  }
  if (mine.gpus_of_program) AskFor(kGpu, mine.gpus, *static_cast<Json*>(container.json));
  const bool some_gpus = std::any_of(devices.roles.begin(), devices.roles.end(),
                                     [](const auto& role) { return role.second.gpus > 0; });
  if (some_gpus && mine.gpus <= 0) AddVariable(container, "NVIDIA_VISIBLE_DEVICES", "void");
  if (std::max(mine.tpus, mine.gpus) > 1) {
    Mount(spec, container, "meshtrain-shm", R"({"emptyDir":{"medium":"Memory"}})", "/dev/shm",
          /*read_only=*/false);
  }
}

}  // namespace meshtrain::reconcile::internal
