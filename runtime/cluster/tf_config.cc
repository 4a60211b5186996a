#include "runtime/cluster/tf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"

namespace meshtrain::cluster {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMaxIndex = 1'000'000;

Status Bad(std::string_view where, std::string_view path, std::string_view expected,
           const Json& got) {
  const std::string text = got.dump(-1, ' ', false, Json::error_handler_t::replace);
  return InvalidArgument(std::string(where) + ": " + Excerpt(path) + ": " + std::string(expected) +
                         ", got: " + Excerpt(text));
}

// 7, "7"; nothing for anything else.
std::optional<int64_t> Index(const Json& value) {
  if (value.is_number_integer()) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxIndex}) {
      return kMaxIndex + int64_t{1};
    }
    return value.get<int64_t>();
  }
  if (value.is_string()) return ParseInt(value.get_ref<const std::string&>());
  return std::nullopt;
}

Result<Role> RoleAt(std::string_view where, const std::string& path, const std::string& name) {
  if (const auto role = ParseRole(name)) return *role;
  std::vector<std::string> known;
  for (const Role role : kRoles) known.emplace_back(RoleName(role));
  return InvalidArgument(std::string(where) + ": " + Excerpt(path) +
                         ": must be chief, worker, ps or evaluator, got: " + Excerpt(name) +
                         DidYouMean(name, known));
}

Status ReadHost(std::string_view where, const std::string& path, const Json& value,
                std::string* host) {
  if (!value.is_string()) return Bad(where, path, "must be \"host:port\"", value);
  *host = value.get<std::string>();
  const size_t colon = host->rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : ParseInt(std::string_view(*host).substr(colon + 1));
  if (colon == 0 || !port || *port < 1 || *port > 65535) {
    return Bad(where, path, "must be \"host:port\" with a port from 1 to 65535", value);
  }
  return OkStatus();
}

Result<ClusterSpec> ReadCluster(std::string_view where, const Json& root) {
  ClusterSpec cluster;
  const auto found = root.find("cluster");
  if (found == root.end()) {
    return InvalidArgument(std::string(where) + ": cluster: must be there, got: nothing");
  }
  if (!found->is_object()) return Bad(where, "cluster", "must be an object of roles", *found);
  for (const auto& [name, members] : found->items()) {
    const std::string path = "cluster." + name;
    MT_ASSIGN_OR_RETURN(const Role role, RoleAt(where, path, name));
    if (cluster.hosts.contains(role)) {
      return InvalidArgument(std::string(where) + ": " + path +
                             ": must be given once, got: two spellings of " +
                             std::string(RoleName(role)));
    }
    auto& hosts = cluster.hosts[role];
    if (members.is_array()) {
      for (size_t i = 0; i < members.size(); ++i) {
        MT_RETURN_IF_ERROR(ReadHost(where, path + "[" + std::to_string(i) + "]", members[i],
                                    &hosts[static_cast<int32_t>(i)]));
      }
    } else if (members.is_object()) {
      for (const auto& [key, value] : members.items()) {
        const auto index = ParseInt(key);
        if (!index || *index < 0 || *index > kMaxIndex) {
          return Bad(where, path, "must have indices for keys", Json(key));
        }
        MT_RETURN_IF_ERROR(
            ReadHost(where, path + "." + key, value, &hosts[static_cast<int32_t>(*index)]));
      }
    } else {
      return Bad(where, path, "must be a list of hosts, or an object of hosts by index", members);
    }
    if (hosts.empty()) cluster.hosts.erase(role);
  }
  return cluster;
}

Result<Json> ReadJson(std::string_view where, std::string_view text) {
  MT_RETURN_IF_ERROR(CheckJsonDepth(text).At(where));
  Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) {
    return InvalidArgument(std::string(where) + ": must be JSON, got: " + Excerpt(text));
  }
  if (!root.is_object()) return Bad(where, "(root)", "must be an object", root);
  return root;
}

// Host names need no escapes; a text that does gets them all the same.
void AppendString(std::string_view text, std::string* out) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) < 0x7f &&
           c != '"' && c != '\\';
  });
  if (plain) {
    *out += '"';
    *out += text;
    *out += '"';
  } else {
    *out += Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

void AppendHosts(const std::map<int32_t, std::string>& hosts, bool dense, std::string* out) {
  *out += dense ? '[' : '{';
  bool first = true;
  for (const auto& [index, host] : hosts) {
    if (!first) *out += ',';
    first = false;
    if (!dense) *out += "\"" + std::to_string(index) + "\":";
    AppendString(host, out);
  }
  *out += dense ? ']' : '}';
}

std::string TaskText(TaskId task) {
  return "\"task\":{\"type\":\"" + std::string(RoleName(task.role)) +
         "\",\"index\":" + std::to_string(task.index) + "}";
}

}  // namespace

int64_t ClusterSpec::size() const {
  int64_t total = 0;
  for (const auto& [role, members] : hosts) total += static_cast<int64_t>(members.size());
  return total;
}

int64_t ClusterSpec::count(Role role) const {
  const auto found = hosts.find(role);
  return found == hosts.end() ? 0 : static_cast<int64_t>(found->second.size());
}

bool ClusterSpec::dense(Role role) const {
  const auto found = hosts.find(role);
  if (found == hosts.end() || found->second.empty()) return true;
  // Keys are distinct and sorted: 0..n-1 exactly when the ends fit.
  return found->second.begin()->first == 0 &&
         found->second.rbegin()->first + int64_t{1} == static_cast<int64_t>(found->second.size());
}

std::string ClusterSpec::host(TaskId task) const {
  const auto role = hosts.find(task.role);
  if (role == hosts.end()) return {};
  const auto found = role->second.find(task.index);
  return found == role->second.end() ? std::string() : found->second;
}

Result<TfConfig> ParseTfConfig(std::string_view text) {
  constexpr std::string_view kWhere = kEnvTfConfig;
  MT_ASSIGN_OR_RETURN(const Json root, ReadJson(kWhere, text));
  TfConfig config;
  MT_ASSIGN_OR_RETURN(config.cluster, ReadCluster(kWhere, root));
  if (config.cluster.size() == 0) {
    return InvalidArgument(std::string(kWhere) +
                           ": cluster: must name at least one host, got: none");
  }
  const auto task = root.find("task");
  if (task == root.end() || task->is_null()) {
    if (config.cluster.size() != 1) {
      return InvalidArgument(std::string(kWhere) + ": task: must say which of " +
                             std::to_string(config.cluster.size()) +
                             " processes this one is, got: nothing");
    }
    const auto& [role, hosts] =
        *std::find_if(config.cluster.hosts.begin(), config.cluster.hosts.end(),
                      [](const auto& entry) { return !entry.second.empty(); });
    config.task = {role, hosts.begin()->first};
    return config;
  }
  if (!task->is_object()) {
    return Bad(kWhere, "task", "must be an object with type and index", *task);
  }
  const auto type = task->find("type");
  if (type == task->end() || !type->is_string()) {
    return Bad(kWhere, "task.type", "must be a role", type == task->end() ? Json() : *type);
  }
  MT_ASSIGN_OR_RETURN(config.task.role, RoleAt(kWhere, "task.type", type->get<std::string>()));
  const Json index = task->value("index", Json(0));  // the resolver's default
  const auto number = Index(index);
  if (!number || *number < 0 || *number > kMaxIndex) {
    return Bad(kWhere, "task.index", "must be a number from 0", index);
  }
  config.task.index = static_cast<int32_t>(*number);
  if (config.cluster.host(config.task).empty()) {
    return Bad(kWhere, "task.index",
               "must be one of the " + std::to_string(config.cluster.count(config.task.role)) +
                   " " + std::string(RoleName(config.task.role)) + " processes of the cluster",
               index);
  }
  return config;
}

Result<ClusterSpec> ParseClusterFile(std::string_view text) {
  constexpr std::string_view kWhere = kEnvClusterFile;
  MT_ASSIGN_OR_RETURN(const Json root, ReadJson(kWhere, text));
  return ReadCluster(kWhere, root);
}

ClusterSpec ViewFor(const ClusterSpec& all, TaskId task, Form form) {
  ClusterSpec view = all;
  if (task.role != Role::kEvaluator) view.hosts.erase(Role::kEvaluator);
  if (form == Form::kDense || task.role == Role::kChief || task.role == Role::kEvaluator) {
    return view;
  }
  view.hosts.erase(Role::kChief);
  view.hosts.erase(Role::kWorker);
  if (task.role == Role::kWorker) view.hosts[Role::kWorker][task.index] = all.host(task);
  return view;
}

std::string ClusterText(const ClusterSpec& cluster) {
  // Sorted by name: chief, evaluator, ps, worker.
  std::map<std::string_view, Role> by_name;
  for (const auto& [role, hosts] : cluster.hosts) {
    if (!hosts.empty()) by_name[RoleName(role)] = role;
  }
  std::string out = "{";
  for (const auto& [name, role] : by_name) {
    if (out.size() > 1) out += ',';
    out += "\"" + std::string(name) + "\":";
    AppendHosts(cluster.hosts.at(role), cluster.dense(role), &out);
  }
  return out + "}";
}

std::string TfConfigText(std::string_view cluster_text, TaskId task) {
  std::string out;
  out.reserve(cluster_text.size() + 80);
  out += "{\"cluster\":";
  out += cluster_text;
  out += ',';
  out += TaskText(task);
  out += ",\"environment\":\"cloud\"}";
  return out;
}

std::string FormatTfConfig(const TfConfig& config) {
  return TfConfigText(ClusterText(config.cluster), config.task);
}

std::string FormatSparseKubeflow(const ClusterSpec& view, TaskId task) {
  std::string out = "{\"cluster\":{\"worker\":";
  const auto worker = view.hosts.find(Role::kWorker);
  const std::map<int32_t, std::string> none;
  AppendHosts(worker == view.hosts.end() ? none : worker->second, false, &out);
  out += ",\"ps\":";
  const auto ps = view.hosts.find(Role::kPs);
  AppendHosts(ps == view.hosts.end() ? none : ps->second, true, &out);
  return out + "}," + TaskText(task) + "}";
}

std::string HostPort(const HostNames& names, TaskId task, int32_t port) {
  std::string out = PodName(names.job, task) + ".";
  if (!names.service_per_replica) out += names.job + ".";
  out += names.namespace_name + ".svc";
  if (!names.domain.empty()) out += "." + names.domain;
  return out + ":" + std::to_string(port);
}

std::string_view HostOf(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

std::string ListenAddress(const TfConfig& config) {
  const std::string address = config.cluster.host(config.task);
  const std::string_view host = HostOf(address);
  if (host == "localhost") return "127.0.0.1";
  if (host == "::1") return std::string(host);
  // A name may begin like a number: "127.example".
  const bool digits = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host.starts_with("127.") && digits ? std::string(host) : "";
}

Result<int> ListenPort(const TfConfig& config) {
  const std::string host = config.cluster.host(config.task);
  const size_t colon = host.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt
                                               : ParseInt(std::string_view(host).substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return InvalidArgument("TF_CONFIG: cluster: expected HOST:PORT for " + ToString(config.task) +
                           ", got: " + (host.empty() ? "none" : host))
        .From(Origin::kManifest);
  }
  return static_cast<int>(*port);
}

}  // namespace meshtrain::cluster
