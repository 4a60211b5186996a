// A process of a job with parameter servers, from the environment that the operator, or `meshtrain
// run`, gives it: TF_CONFIG and what stands beside it.
#pragma once

#include "runtime/base/status.h"
#include "runtime/membership/environment.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/messages/transfer.h"

namespace meshtrain::parameter {

// Which job this process is of, and how its processes know each other. Errors:
// SecurityFromEnvironment's.
Result<Identity> IdentityOf(const membership::Environment& environment);

// A chief's options: `options` with the cluster, the identity and how long a lost process is waited
// for. Where the cluster has no chief it is worker 0, which serves as a worker too. Errors:
// ClusterOf's, IdentityOf's, PeerReturnOf's; kFailedPrecondition without TF_CONFIG, or naming the
// task that is not the chief.
Result<CoordinatorOptions> OptionsFromEnvironment(
    CoordinatorOptions options = {},
    const membership::Environment& environment = membership::ProcessEnvironment());

}  // namespace meshtrain::parameter
