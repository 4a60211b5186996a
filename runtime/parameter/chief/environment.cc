#include "runtime/parameter/chief/environment.h"

#include <optional>
#include <string>
#include <utility>

#include "runtime/cluster/contract.h"
#include "runtime/rpc/security.h"

namespace meshtrain::parameter {

Result<Identity> IdentityOf(const membership::Environment& environment) {
  Identity identity{.job = environment(cluster::kEnvJob).value_or("")};
  MT_ASSIGN_OR_RETURN(identity.security, rpc::SecurityFromEnvironment(environment));
  return identity;
}

Result<CoordinatorOptions> OptionsFromEnvironment(CoordinatorOptions options,
                                                  const membership::Environment& environment) {
  MT_ASSIGN_OR_RETURN(std::optional<cluster::TfConfig> config, membership::ClusterOf(environment));
  if (!config) {
    return FailedPrecondition("parameter servers: expected a cluster in " +
                              std::string(cluster::kEnvTfConfig) + ", got: none");
  }
  const cluster::TaskId chief = {config->cluster.count(cluster::Role::kChief) > 0
                                     ? cluster::Role::kChief
                                     : cluster::Role::kWorker,
                                 0};
  if (config->task != chief) {
    return FailedPrecondition("parameter servers: expected the coordinator in " +
                              cluster::ToString(chief) +
                              ", got: " + cluster::ToString(config->task));
  }
  options.cluster = std::move(config->cluster);
  MT_ASSIGN_OR_RETURN(options.identity, IdentityOf(environment));
  MT_ASSIGN_OR_RETURN(const auto peer_return, membership::PeerReturnOf(environment));
  options.return_timeout = peer_return.value_or(options.return_timeout);
  return options;
}

}  // namespace meshtrain::parameter
