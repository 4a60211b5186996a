#include "runtime/strategy/multi_worker.h"

#include <utility>

#include "runtime/membership/join_team.h"

namespace meshtrain::strategy {

Status JoinedWorker::Leave(Duration timeout) {
  return team == nullptr ? OkStatus() : team->Leave(timeout);
}

Result<JoinedWorker> JoinMultiWorkerMirrored(MultiWorkerOptions options, std::stop_token stop,
                                             const membership::Environment& environment) {
  JoinedWorker joined;
  MT_ASSIGN_OR_RETURN(joined.team,
                      membership::JoinTeam({.collective_deadline = options.common.deadline,
                                            .threads = options.common.threads},
                                           std::move(stop), environment));
  options.team = joined.team.get();
  if (joined.team == nullptr) {
    options.process = 0;
    options.processes = 1;
  }
  MT_ASSIGN_OR_RETURN(joined.strategy, Strategy::MultiWorkerMirrored(std::move(options)));
  return joined;
}

}  // namespace meshtrain::strategy
