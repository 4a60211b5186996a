#include "runtime/distribute/strategy/multi_worker.h"

#include <utility>

#include "runtime/cluster/contract.h"

namespace meshtrain::distribute {

Status JoinedWorker::Leave(Duration timeout) {
  return team == nullptr ? OkStatus() : team->Leave(timeout);
}

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
  MT_ASSIGN_OR_RETURN(const auto peer_return, PeerReturnOf(environment));
  team.peer_return = peer_return.value_or(team.peer_return);
  team.collective_deadline = options.common.deadline;
  return JoinMultiWorkerMirrored(std::move(team), std::move(options), std::move(stop));
}

Result<JoinedWorker> JoinMultiWorkerMirrored(TeamOptions team, MultiWorkerOptions options,
                                             std::stop_token stop) {
  JoinedWorker joined;
  MT_ASSIGN_OR_RETURN(joined.team, Team::Create(std::move(team)));
  MT_RETURN_IF_ERROR(joined.team->Join(-1, std::move(stop)).status());
  options.team = joined.team.get();
  MT_ASSIGN_OR_RETURN(joined.strategy, Strategy::MultiWorkerMirrored(std::move(options)));
  return joined;
}

}  // namespace meshtrain::distribute
