// MultiWorkerMirrored from the environment that the operator, or `meshtrain run`, gives a process:
// TF_CONFIG and what stands beside it.
#pragma once

#include <memory>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/team.h"
#include "runtime/strategy/options.h"
#include "runtime/strategy/strategy.h"

namespace meshtrain::strategy {

struct JoinedWorker {
  std::shared_ptr<membership::Team> team;  // null where this process is alone
  std::unique_ptr<ReplicaStrategy> strategy;

  // Tells the others that this process is done; they wait for it otherwise. Null team: nothing.
  Status Leave(Duration timeout = std::chrono::seconds(30));
};

// Joins the other workers, waiting for all of them, and makes the strategy. Without TF_CONFIG: one
// worker. `options`: its team, process and communicator are set here. Errors: JoinTeam's.
Result<JoinedWorker> JoinMultiWorkerMirrored(
    MultiWorkerOptions options = {}, std::stop_token stop = {},
    const membership::Environment& environment = membership::ProcessEnvironment());

}  // namespace meshtrain::strategy
