// A team from the environment that the operator, or `meshtrain run`, gives a process: TF_CONFIG and
// what stands beside it.
#pragma once

#include <memory>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/team.h"
#include "runtime/membership/team_options.h"

namespace meshtrain::membership {

// The processes that TF_CONFIG names, when all of them have joined; null without TF_CONFIG, for a
// process that is alone. Of `options` the configuration, the job and the security are set here, and
// how long a lost peer is waited for where the environment says it. Call it before anything is
// computed: a process that has computed cannot come down to another's instruction set any more.
// Errors: ClusterOf's, LimitInstructionSetBy's, Team::Create's (a ps or an evaluator holds no part
// of a mesh) and Team::Join's.
Result<std::unique_ptr<Team>> JoinTeam(TeamOptions options, std::stop_token stop = {},
                                       const Environment& environment = ProcessEnvironment());

}  // namespace meshtrain::membership
