// The logs of a job's pods.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "cli/cluster/connection.h"

namespace meshtrain::cli {

struct LogChoice {
  std::string role;          // empty: of all roles, or with `leader` of the one that decides
  std::optional<int> index;  // of the role
  bool leader = false;
};

struct PodOfJob {
  std::string name, uid, replica, container, phase;  // "worker-3", "Running"
};
// The job's pods that are chosen, by role and index. `all`: with those that are being deleted.
Result<std::vector<PodOfJob>> PodsOfJob(Cluster& cluster, const std::string& job,
                                        const LogChoice& choice);

// Prints the logs of the chosen pods as they grow, each line after "[worker-3] " where `prefix`,
// pods that are made again included, until the job has ended and all was read, or `stop`. Returns
// the job as it was then.
Result<api::TrainingJob> FollowLogs(Cluster& cluster, const std::string& job,
                                    const LogChoice& choice, bool prefix, std::stop_token stop,
                                    const Console& console);

}  // namespace meshtrain::cli
