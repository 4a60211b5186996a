#include "runtime/membership/join_team.h"

#include <optional>
#include <utility>

#include "runtime/cluster/contract.h"
#include "runtime/membership/arithmetic_agreement.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/team_options.h"

namespace meshtrain::membership {

Result<std::unique_ptr<Team>> JoinTeam() { return JoinTeam(TeamOptions{}); }

Result<std::unique_ptr<Team>> JoinTeam(TeamOptions options, std::stop_token stop,
                                       const Environment& environment) {
  MT_RETURN_IF_ERROR(LimitInstructionSetBy(environment));
  MT_ASSIGN_OR_RETURN(std::optional<cluster::TfConfig> config, ClusterOf(environment));
  if (!config) return std::unique_ptr<Team>();
  options.config = std::move(*config);
  options.job = environment(cluster::kEnvJob).value_or("");
  MT_ASSIGN_OR_RETURN(options.security, rpc::SecurityFromEnvironment(environment));
  MT_ASSIGN_OR_RETURN(const auto peer_return, PeerReturnOf(environment));
  options.peer_return = peer_return.value_or(options.peer_return);
  options.forced_instruction_set = ForcedInstructionSet(environment);
  MT_ASSIGN_OR_RETURN(auto team, Team::Create(std::move(options)));
  MT_RETURN_IF_ERROR(team->Join(-1, std::move(stop)).status());
  return team;
}

}  // namespace meshtrain::membership
