#include "operator/local/pod.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "runtime/cluster/contract.h"
#include "runtime/cluster/stop_grace.h"

namespace meshtrain::local {
namespace {

using Json = nlohmann::json;

const Json& At(const Json& object, std::string_view key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string Text(const Json& object, std::string_view key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get_ref<const std::string&>() : std::string();
}

bool IsTrue(const Json& object, std::string_view key) { return At(object, key) == Json(true); }

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Kubernetes wants strings; a number or a truth value that YAML made of an unquoted word is
// forgiven here.
std::string Scalar(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() || value.is_boolean() ? value.dump() : std::string();
}

Result<std::vector<std::string>> Words(const Json& container, const std::string& key) {
  std::vector<std::string> out;
  const Json& list = At(container, key);
  if (list.is_null()) return out;
  if (!list.is_array()) {
    return InvalidArgument(key + ": expected a list of texts, got: " + Excerpt(Dump(list)));
  }
  for (const Json& word : list) {
    if (word.is_structured() || word.is_null()) {
      return InvalidArgument(key + "[" + std::to_string(out.size()) +
                             "]: expected a text, got: " + Excerpt(Dump(word)));
    }
    out.push_back(Scalar(word));
  }
  return out;
}

const Json& TrainingContainer(const Json& containers) {
  for (const std::string_view wanted : cluster::kTrainingContainers) {
    for (const Json& container : containers) {
      if (Text(container, "name") == wanted) return container;
    }
  }
  return containers.front();
}

// metadata.labels['x'] -> x; nothing where `path` is no such thing.
std::optional<std::string> Subscript(const std::string& path, const std::string& map) {
  const std::string head = map + "['";
  if (!path.starts_with(head) || !path.ends_with("']")) return std::nullopt;
  return path.substr(head.size(), path.size() - head.size() - 2);
}

// The downward API's fields that mean something here
// (kubernetes.io/docs/concepts/workloads/pods/downward-api).
std::optional<std::string> Field(const Json& pod, const std::string& path) {
  const Json& meta = At(pod, "metadata");
  if (path == "metadata.name") return Text(meta, "name");
  if (path == "metadata.namespace") return Text(meta, "namespace");
  if (const auto key = Subscript(path, "metadata.labels")) return Text(At(meta, "labels"), *key);
  if (const auto key = Subscript(path, "metadata.annotations")) {
    return Text(At(meta, "annotations"), *key);
  }
  if (path == "spec.nodeName") return "localhost";
  if (path == "status.podIP" || path == "status.hostIP" || path == "status.podIPs" ||
      path == "status.hostIPs") {
    return "127.0.0.1";
  }
  return std::nullopt;
}

Status ReadVariable(const Json& pod, const Json& variable, Container* out) {
  const std::string name = Text(variable, "name");
  const Json& from = At(variable, "valueFrom");
  if (!from.is_object()) {
    out->environment.emplace_back(name, Scalar(At(variable, "value")));
    return OkStatus();
  }
  if (from.contains("fieldRef")) {
    const std::string path = Text(from["fieldRef"], "fieldPath");
    if (const auto value = Field(pod, path)) {
      out->environment.emplace_back(name, *value);
      return OkStatus();
    }
    return FailedPrecondition("env " + name +
                              ": expected a field that a local process has, got: " + path);
  }
  for (const auto& [kind, source] : from.items()) {
    if (IsTrue(source, "optional")) return OkStatus();
    return FailedPrecondition(
        "env " + name +
        ": expected a value, since there is no cluster to read it from, got: " + kind);
  }
  return OkStatus();
}

// Volumes that the operator adds and the local runner has an answer for.
bool IsOurs(const std::string& volume) {
  // A claim is the folder at its path, and the output a folder of this machine.
  constexpr std::string_view kOurs[] = {
      "meshtrain-token", "meshtrain-cluster", "meshtrain-checkpoint", "meshtrain-output",
      "meshtrain-work",  "meshtrain-tmp",     "meshtrain-shm"};
  return volume.starts_with("meshtrain-claim-") ||
         std::find(std::begin(kOurs), std::end(kOurs), volume) != std::end(kOurs);
}

void NoteLeftOut(const Json& spec, const Json& container, Container* out) {
  if (const Json& first = At(spec, "initContainers"); first.is_array() && !first.empty()) {
    out->left_out.push_back("spec.initContainers");
  }
  for (const Json& other : At(spec, "containers")) {
    if (&other != &container) out->left_out.push_back("container " + Text(other, "name"));
  }
  const Json& mounts = At(container, "volumeMounts");
  if (!mounts.is_array()) return;
  for (const Json& mount : mounts) {
    const std::string volume = Text(mount, "name");
    if (!IsOurs(volume)) {
      out->left_out.push_back("volume " + volume + " at " + Text(mount, "mountPath"));
    }
  }
}

}  // namespace

Result<Container> ReadPod(std::string_view body) {
  const Json pod = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const Json& spec = At(pod, "spec");
  const Json& containers = At(spec, "containers");
  if (!containers.is_array() || containers.empty()) {
    return InvalidArgument("pod: spec.containers: expected at least one, got: none");
  }
  const Json& container = TrainingContainer(containers);
  Container out;
  out.name = Text(container, "name");
  MT_ASSIGN_OR_RETURN(out.command, Words(container, "command"));
  MT_ASSIGN_OR_RETURN(out.args, Words(container, "args"));
  out.working_directory = Text(container, "workingDir");
  out.restart_policy = Text(spec, "restartPolicy");
  const Json& grace = At(spec, "terminationGracePeriodSeconds");
  out.grace = grace.is_number_integer() ? BoundedSeconds(std::max<int64_t>(0, grace.get<int64_t>()))
                                        : cluster::kDefaultStopGrace;
  if (const Json& ports = At(container, "ports"); ports.is_array()) {
    for (const Json& port : ports) {
      const Json& number = At(port, "containerPort");
      if (Text(port, "name") == cluster::kHttpPortName && number.is_number_integer()) {
        out.http_port = number.get<int32_t>();
      }
    }
  }
  if (const Json& sources = At(container, "envFrom"); sources.is_array()) {
    for (const Json& source : sources) {
      if (!IsTrue(At(source, "configMapRef"), "optional") &&
          !IsTrue(At(source, "secretRef"), "optional")) {
        return FailedPrecondition(
            "envFrom: expected plain variables in env, since there is no cluster to read from");
      }
    }
  }
  if (const Json& variables = At(container, "env"); variables.is_array()) {
    for (const Json& variable : variables) MT_RETURN_IF_ERROR(ReadVariable(pod, variable, &out));
  }
  NoteLeftOut(spec, container, &out);
  return out;
}

// As k8s.io/kubernetes/third_party/forked/golang/expansion.
std::string Expand(std::string_view text, const std::map<std::string, std::string>& variables) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    if (text[i + 1] == '$') {
      out += '$';
      ++i;
      continue;
    }
    const size_t end = text[i + 1] == '(' ? text.find(')', i + 2) : std::string_view::npos;
    if (end == std::string_view::npos) {
      out += text[i];
      continue;
    }
    const auto found = variables.find(std::string(text.substr(i + 2, end - i - 2)));
    if (found == variables.end()) {
      out += text.substr(i, end + 1 - i);
    } else {
      out += found->second;
    }
    i = end;
  }
  return out;
}

std::map<std::string, std::string> Expand(
    const std::vector<std::pair<std::string, std::string>>& environment) {
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : environment) out[name] = Expand(value, out);
  return out;
}

std::string WithHosts(std::string_view json, const std::map<std::string, std::string>& hosts) {
  std::string out;
  for (size_t i = 0; i < json.size();) {
    const size_t open = json.find('"', i);
    if (open == std::string_view::npos) {
      out += json.substr(i);
      break;
    }
    size_t close = open + 1;
    while (close < json.size() && json[close] != '"') close += json[close] == '\\' ? 2 : 1;
    if (close >= json.size()) {
      out += json.substr(i);
      break;
    }
    out += json.substr(i, open + 1 - i);
    const std::string_view text = json.substr(open + 1, close - open - 1);
    const auto found = hosts.find(std::string(text));
    out += found == hosts.end() ? text : std::string_view(found->second);
    out += '"';
    i = close + 1;
  }
  return out;
}

}  // namespace meshtrain::local
