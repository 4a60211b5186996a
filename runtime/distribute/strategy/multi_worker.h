// MultiWorkerMirrored from the environment that the operator, or `meshtrain run`, gives a process: TF_CONFIG and what
// stands beside it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/distribute/strategy/options.h"
#include "runtime/distribute/strategy/strategy.h"
#include "runtime/distribute/team.h"

namespace meshtrain::distribute {

// The value of a variable, nothing where it is not set.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
Environment ProcessEnvironment();

struct JoinedWorker {
  std::unique_ptr<Team> team;  // null where this process is alone
  std::unique_ptr<Strategy> strategy;

  // Tells the others that this process is done; they wait for it otherwise. Null team: nothing.
  Status Leave(Duration timeout = std::chrono::seconds(30));
};

// The task and the cluster that the environment names; nothing for a lone process. Errors: kInvalidArgument naming the
// variable; those of reading the cluster's file.
Result<std::optional<cluster::TfConfig>> ClusterOf(const Environment& environment);

// Joins the other workers, waiting for all of them, and makes the strategy. Without TF_CONFIG: one worker. `options`: its
// team, process and communicator are set here. Errors: ClusterOf's, Team::Create's (a ps or an evaluator holds no replica)
// and Team::Join's.
Result<JoinedWorker> JoinMultiWorkerMirrored(MultiWorkerOptions options = {}, std::stop_token stop = {},
                                             const Environment& environment = ProcessEnvironment());
// The same for a team's options that are known already.
Result<JoinedWorker> JoinMultiWorkerMirrored(TeamOptions team, MultiWorkerOptions options, std::stop_token stop = {});

}  // namespace meshtrain::distribute
