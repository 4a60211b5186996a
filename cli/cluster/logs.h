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
                                        const LogChoice& choice, std::stop_token stop = {});

struct FollowOptions {
  bool prefix = false;          // each line after "[worker-3] "
  std::optional<int64_t> tail;  // of each pod's log the last lines, and what comes then
};

// Prints the logs of the chosen pods as they grow, each line once, restarts in place and pods that
// are made again included, until the job has ended and all was read. Returns the job as it was
// then. A server that is away for a while is waited for (Patience). Errors: kCancelled, of kStop,
// after `stop`; of kOutput where nobody takes what is printed any more.
Result<api::TrainingJob> FollowLogs(Cluster& cluster, const std::string& job,
                                    const LogChoice& choice, const FollowOptions& options,
                                    std::stop_token stop, const Console& console);

}  // namespace meshtrain::cli
