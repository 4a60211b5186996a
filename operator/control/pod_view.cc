#include "operator/control/pod_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/kube/json_slice.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::control {
namespace {

using nlohmann::json;
using reconcile::PodPhase;

const json& At(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string Text(const json& object, const char* key) {
  const json& value = At(object, key);
  return value.is_string() ? value.get_ref<const std::string&>() : std::string();
}

// Of one pod: so many that those of 10,000 pods still have a sum.
constexpr int64_t kMostRestarts = 100'000;

// A number beyond 32 bits is the nearest one within them.
int32_t Number(const json& object, const char* key) {
  const json& value = At(object, key);
  if (value.is_number_unsigned()) {
    return static_cast<int32_t>(std::min<uint64_t>(value.get<uint64_t>(), INT32_MAX));
  }
  if (!value.is_number_integer()) return 0;
  return static_cast<int32_t>(std::clamp<int64_t>(value.get<int64_t>(), INT32_MIN, INT32_MAX));
}

std::optional<TimePoint> Time(const json& object, const char* key) {
  const std::string text = Text(object, key);
  return text.empty() ? std::nullopt : ParseTime(text);
}

Meta MetaOf(const json& metadata) {
  Meta out;
  out.ns = Text(metadata, "namespace");
  out.name = Text(metadata, "name");
  out.uid = Text(metadata, "uid");
  out.version = ParseInt(Text(metadata, "resourceVersion")).value_or(0);
  for (const json& owner : At(metadata, "ownerReferences")) {
    if (At(owner, "controller") != json(true)) continue;
    out.controller_uid = Text(owner, "uid");
    out.controller_kind = Text(owner, "kind");
    out.controller_name = Text(owner, "name");
  }
  return out;
}

PodPhase ParsePhase(const std::string& phase) {
  if (phase == "Running") return PodPhase::kRunning;
  if (phase == "Succeeded") return PodPhase::kSucceeded;
  if (phase == "Failed") return PodPhase::kFailed;
  if (phase == "Unknown") return PodPhase::kUnknown;
  return PodPhase::kPending;
}

// The members of metadata but managedFields, which nobody reads and which is often a third of an
// object.
json MetadataOf(std::string_view object) {
  json metadata = json::object();
  kube::ForEachMember(
      kube::Slice(object, {"metadata"}), [&](std::string_view key, std::string_view value) {
        if (key != "managedFields") {
          metadata[std::string(key)] = json::parse(value, nullptr, /*allow_exceptions=*/false);
        }
        return true;
      });
  return metadata;
}

// The parts of a pod that are read below; the rest is not worth building a tree for.
json Reduced(std::string_view pod) {
  json out = {{"metadata", MetadataOf(pod)}};
  const auto parse = [](std::string_view value) {
    return json::parse(value, nullptr, /*allow_exceptions=*/false);
  };
  kube::ForEachMember(pod, [&](std::string_view key, std::string_view value) {
    if (key == "status") out["status"] = parse(value);
    if (key != "spec") return true;
    json& spec = out["spec"] = json::object();
    kube::ForEachMember(value, [&](std::string_view field, std::string_view content) {
      if (field == "nodeName" || field == "volumes") spec[std::string(field)] = parse(content);
      if (field != "containers") return true;
      json& containers = spec["containers"] = json::array();
      kube::ForEachElement(content, [&](std::string_view container) {
        json& reduced = containers.emplace_back(json::object());
        kube::ForEachMember(container, [&](std::string_view name, std::string_view text) {
          if (name == "name" || name == "ports") reduced[std::string(name)] = parse(text);
          return true;
        });
        return true;
      });
      return true;
    });
    return true;
  });
  return out;
}

// The objects that a pod's volumes are of.
std::string VolumesOf(const json& volumes) {
  struct Kind {
    const char *field, *name, *called;
  };
  constexpr Kind kKinds[] = {{"secret", "secretName", "Secret"},
                             {"configMap", "name", "ConfigMap"},
                             {"persistentVolumeClaim", "claimName", "claim"}};
  std::string out;
  for (const json& volume : volumes) {
    for (const Kind& kind : kKinds) {
      const std::string name = Text(At(volume, kind.field), kind.name);
      if (name.empty()) continue;
      out += (out.empty() ? "" : ", ") + std::string(kind.called) + " " + name;
    }
  }
  return out;
}

// The training container: by its preferred names, else the first.
std::string TrainingContainer(const json& containers) {
  for (const std::string_view wanted : cluster::kTrainingContainers) {
    for (const json& container : containers) {
      if (Text(container, "name") == wanted) return std::string(wanted);
    }
  }
  return containers.is_array() && !containers.empty() ? Text(containers[0], "name") : "";
}

void ReadConditions(const json& status, reconcile::PodSeen& seen) {
  for (const json& condition : At(status, "conditions")) {
    const std::string type = Text(condition, "type");
    const std::string value = Text(condition, "status");
    if (type == "Ready") seen.ready = value == "True";
    if (type == "DisruptionTarget") seen.disrupted = value == "True";
    if (type == "PodScheduled" && value == "False" &&
        Text(condition, "reason") == "Unschedulable") {
      seen.waiting_reason = "Unschedulable";
      seen.waiting_message = Text(condition, "message");
    }
  }
}

void ReadContainers(const json& statuses, const std::string& training, reconcile::PodSeen& seen) {
  for (const json& container : statuses) {
    const int64_t restarts = int64_t{seen.restart_count} + Number(container, "restartCount");
    seen.restart_count = static_cast<int32_t>(std::clamp<int64_t>(restarts, 0, kMostRestarts));
    const json& state = At(container, "state");
    if (const json& waiting = At(state, "waiting"); waiting.is_object()) {
      // Why this container waits; an ordinary start is no reason to speak of.
      const std::string reason = Text(waiting, "reason");
      if (!reason.empty() && reason != "ContainerCreating" && reason != "PodInitializing") {
        seen.waiting_reason = reason;
        seen.waiting_message = Text(waiting, "message");
      }
    }
    if (Text(container, "name") != training) continue;
    if (const json& ended = At(state, "terminated"); ended.is_object()) {
      seen.exit_code = Number(ended, "exitCode");
      seen.exit_reason = Text(ended, "reason");
      seen.termination_message = Text(ended, "message").substr(0, 4096);
      seen.finished = Time(ended, "finishedAt");
    }
    if (const json& last = At(At(container, "lastState"), "terminated"); last.is_object()) {
      seen.last_exit_code = Number(last, "exitCode");
      if (seen.termination_message.empty()) {
        seen.termination_message = Text(last, "message").substr(0, 4096);
      }
    }
  }
}

}  // namespace

Result<Meta> ParseMeta(std::string_view text) {
  const json metadata = MetadataOf(text);
  if (Text(metadata, "name").empty()) {
    return InvalidArgument("object: expected metadata.name, got: " +
                           std::string(text.substr(0, 200)));
  }
  return MetaOf(metadata);
}

Result<Pod> ParsePod(std::string_view text) {
  const json object = Reduced(text);
  const json& metadata = At(object, "metadata");
  if (Text(metadata, "name").empty()) {
    return InvalidArgument("pod: expected metadata.name, got: " + std::string(text.substr(0, 200)));
  }
  const Meta meta = MetaOf(metadata);
  Pod pod;
  pod.ns = meta.ns;
  reconcile::PodSeen& seen = pod.seen;
  seen.name = meta.name;
  seen.uid = meta.uid;
  seen.controller_uid = meta.controller_uid;

  const json& labels = At(metadata, "labels");
  const std::string label_job = Text(labels, cluster::kLabelJob.data());
  pod.job = meta.controller_kind == cluster::kKind ? meta.controller_name : label_job;
  pod.leader = Text(labels, cluster::kLabelLeader.data()) == "true";
  const auto role = cluster::ParseRole(Text(labels, cluster::kLabelRole.data()));
  const auto index = ParseInt(Text(labels, cluster::kLabelIndex.data()));
  if (role && index && *index >= 0 && *index <= INT32_MAX) {
    seen.task = cluster::TaskId{.role = *role, .index = static_cast<int32_t>(*index)};
  }
  seen.matches_selector = label_job == pod.job && !label_job.empty() &&
                          Text(labels, cluster::kLabelManagedBy.data()) == cluster::kManagedByValue;
  seen.attempt = static_cast<int32_t>(
      ParseInt(Text(At(metadata, "annotations"), cluster::kAnnotationAttempt.data())).value_or(0));
  seen.cluster = Text(At(metadata, "annotations"), cluster::kAnnotationCluster.data());
  seen.job_uid = Text(At(metadata, "annotations"), cluster::kAnnotationJobUid.data());
  seen.created = Time(metadata, "creationTimestamp").value_or(TimePoint());
  if (const auto due = Time(metadata, "deletionTimestamp")) {
    seen.delete_due = due;
    seen.delete_requested =
        *due - std::chrono::seconds(Number(metadata, "deletionGracePeriodSeconds"));
  }

  const json& spec = At(object, "spec");
  const json& status = At(object, "status");
  seen.node = Text(spec, "nodeName");
  seen.phase = ParsePhase(Text(status, "phase"));
  seen.reason = Text(status, "reason");
  pod.ip = Text(status, "podIP");
  const json& containers = At(spec, "containers");
  const std::string training = TrainingContainer(containers);
  for (const json& container : containers) {
    if (Text(container, "name") != training) continue;
    for (const json& port : At(container, "ports")) {
      if (Text(port, "name") == cluster::kHttpPortName) {
        pod.http_port = Number(port, "containerPort");
      }
    }
  }
  // Ten thousand pods that run need no list each.
  if (seen.phase == PodPhase::kPending) seen.volumes = VolumesOf(At(spec, "volumes"));
  ReadConditions(status, seen);
  ReadContainers(At(status, "initContainerStatuses"), "", seen);
  ReadContainers(At(status, "containerStatuses"), training, seen);
  return pod;
}

}  // namespace meshtrain::control
