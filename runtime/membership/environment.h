// What a process is told through its environment (runtime/cluster/contract.h) about the job that it
// is part of. Errors are of Origin::kManifest.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cluster/tf_config.h"

namespace meshtrain::membership {

// The value of a variable, nothing where it is not set.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment ProcessEnvironment();

// The task and the cluster: TF_CONFIG, with the cluster of MESHTRAIN_CLUSTER_FILE where that names
// a file (a cluster too large for a variable; two more say who reads it). Nothing for a lone
// process. Errors: kInvalidArgument naming the variable; those of reading the file.
Result<std::optional<cluster::TfConfig>> ClusterOf(const Environment& environment);

// MESHTRAIN_PEER_RETURN_SECONDS: how long to wait for a lost peer, 0: not at all; nothing where it
// is not set. Errors: kInvalidArgument naming the variable.
Result<std::optional<Duration>> PeerReturnOf(const Environment& environment);

}  // namespace meshtrain::membership
