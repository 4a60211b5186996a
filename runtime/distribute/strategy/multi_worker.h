// MultiWorkerMirrored from the environment that the operator, or `meshtrain run`, gives a process:
// TF_CONFIG and what stands beside it.
#pragma once

#include <memory>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/distribute/environment.h"
#include "runtime/distribute/strategy/options.h"
#include "runtime/distribute/strategy/strategy.h"
#include "runtime/distribute/team.h"

namespace meshtrain::distribute {

struct JoinedWorker {
  std::unique_ptr<Team> team;  // null where this process is alone
  std::unique_ptr<Strategy> strategy;

  // Tells the others that this process is done; they wait for it otherwise. Null team: nothing.
  Status Leave(Duration timeout = std::chrono::seconds(30));
};

// Joins the other workers, waiting for all of them, and makes the strategy. Without TF_CONFIG: one
// worker. `options`: its team, process and communicator are set here. Errors: JoinTeam's.
Result<JoinedWorker> JoinMultiWorkerMirrored(MultiWorkerOptions options = {},
                                             std::stop_token stop = {},
                                             const Environment& environment = ProcessEnvironment());

}  // namespace meshtrain::distribute
