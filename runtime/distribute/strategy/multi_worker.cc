#include "runtime/distribute/strategy/multi_worker.h"

#include <cstdlib>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::distribute {

Environment ProcessEnvironment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Result<std::optional<cluster::TfConfig>> ClusterOf(const Environment& environment) {
  const auto file = environment(cluster::kEnvClusterFile);
  if (!file) {
    const auto text = environment(cluster::kEnvTfConfig);
    if (!text || text->empty()) return std::optional<cluster::TfConfig>();
    MT_ASSIGN_OR_RETURN(cluster::TfConfig config, cluster::ParseTfConfig(*text));
    return std::optional(std::move(config));
  }
  // A cluster too large for a variable: two more say who reads it.
  MT_ASSIGN_OR_RETURN(const std::string content, ReadFile(*file, int64_t{16} << 20));
  auto parsed = cluster::ParseClusterFile(content);
  if (!parsed.ok()) return parsed.status().At(*file);
  const auto role = cluster::ParseRole(environment(cluster::kEnvRole).value_or(""));
  const auto index = ParseInt(environment(cluster::kEnvIndex).value_or(""));
  if (!role || !index || *index < 0) {
    return InvalidArgument(std::string(cluster::kEnvRole) + " and " + std::string(cluster::kEnvIndex) +
                           ": expected a role and a number from 0, got: " +
                           environment(cluster::kEnvRole).value_or("") + " and " +
                           environment(cluster::kEnvIndex).value_or(""));
  }
  return std::optional(cluster::TfConfig{std::move(*parsed), {*role, static_cast<int32_t>(*index)}});
}

Status JoinedWorker::Leave(Duration timeout) { return team == nullptr ? OkStatus() : team->Leave(timeout); }

Result<JoinedWorker> JoinMultiWorkerMirrored(MultiWorkerOptions options, std::stop_token stop,
                                             const Environment& environment) {
  MT_ASSIGN_OR_RETURN(std::optional<cluster::TfConfig> config, ClusterOf(environment));
  if (!config) {
    options.team = nullptr;
    options.process = 0;
    options.processes = 1;
    JoinedWorker alone;
    MT_ASSIGN_OR_RETURN(alone.strategy, Strategy::MultiWorkerMirrored(std::move(options)));
    return alone;
  }
  TeamOptions team{.config = std::move(*config), .job = environment(cluster::kEnvJob).value_or("")};
  MT_ASSIGN_OR_RETURN(team.security, SecurityFromEnvironment(environment));
  if (const auto text = environment(cluster::kEnvPeerReturn)) {
    const auto seconds = ParseInt(*text);
    if (!seconds || *seconds < 0) {
      return InvalidArgument(std::string(cluster::kEnvPeerReturn) + ": expected seconds from 0, got: " + *text);
    }
    team.peer_return = std::chrono::seconds(*seconds);
  }
  team.collective_deadline = options.common.deadline;
  return JoinMultiWorkerMirrored(std::move(team), std::move(options), std::move(stop));
}

Result<JoinedWorker> JoinMultiWorkerMirrored(TeamOptions team, MultiWorkerOptions options, std::stop_token stop) {
  JoinedWorker joined;
  MT_ASSIGN_OR_RETURN(joined.team, Team::Create(std::move(team)));
  MT_RETURN_IF_ERROR(joined.team->Join(-1, std::move(stop)).status());
  options.team = joined.team.get();
  MT_ASSIGN_OR_RETURN(joined.strategy, Strategy::MultiWorkerMirrored(std::move(options)));
  return joined;
}

}  // namespace meshtrain::distribute
