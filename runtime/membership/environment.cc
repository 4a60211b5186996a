#include "runtime/membership/environment.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::membership {

Environment ProcessEnvironment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

namespace {

Result<std::optional<cluster::TfConfig>> ReadCluster(const Environment& environment) {
  const auto file = environment(cluster::kEnvClusterFile);
  if (!file) {
    const auto text = environment(cluster::kEnvTfConfig);
    if (!text || text->empty()) return std::optional<cluster::TfConfig>();
    MT_ASSIGN_OR_RETURN(cluster::TfConfig config, cluster::ParseTfConfig(*text));
    return std::optional(std::move(config));
  }
  MT_ASSIGN_OR_RETURN(const std::string content, ReadFile(*file, int64_t{16} << 20));
  auto parsed = cluster::ParseClusterFile(content);
  if (!parsed.ok()) return parsed.status().At(*file);
  const std::string role_text = environment(cluster::kEnvRole).value_or("");
  const auto role = cluster::ParseRole(role_text);
  if (!role) {
    return InvalidArgument(std::string(cluster::kEnvRole) +
                           ": expected chief, worker, ps or evaluator, got: " + role_text);
  }
  const std::string index_text = environment(cluster::kEnvIndex).value_or("");
  const auto index = ParseInt(index_text);
  if (!index || *index < 0) {
    return InvalidArgument(std::string(cluster::kEnvIndex) +
                           ": expected a number from 0, got: " + index_text);
  }
  return std::optional(
      cluster::TfConfig{std::move(*parsed), {*role, static_cast<int32_t>(*index)}});
}

}  // namespace

Result<std::optional<cluster::TfConfig>> ClusterOf(const Environment& environment) {
  return ReadCluster(environment).From(Origin::kManifest);
}

Result<std::optional<Duration>> PeerReturnOf(const Environment& environment) {
  const auto text = environment(cluster::kEnvPeerReturn);
  if (!text) return std::optional<Duration>();
  const auto seconds = ParseInt(*text);
  if (!seconds || *seconds < 0) {
    return InvalidArgument(std::string(cluster::kEnvPeerReturn) +
                           ": expected seconds from 0, got: " + *text)
        .From(Origin::kManifest);
  }
  return std::optional<Duration>(BoundedSeconds(*seconds));
}

}  // namespace meshtrain::membership
