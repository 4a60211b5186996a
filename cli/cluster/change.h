// Verbs that change a field of one or several jobs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/cluster/connection.h"

namespace meshtrain::cli {

struct ChangeFlags {
  ClusterFlags cluster;
  std::vector<std::string> names;
};

// For each job in turn: reads it, lets `change` act, and prints "trainingjob.meshtrain.dev/NAME
// DONE". Goes on past an error, and returns the first.
using ChangeJob = std::function<Status(Cluster& cluster, const api::TrainingJob& job)>;
Status ChangeEach(const ChangeFlags& flags, const char* verb, const std::string& done,
                  const ChangeJob& change, const Console& console);

// spec.runPolicy.suspend of jobs that have not ended.
Status SetSuspend(const ChangeFlags& flags, const char* verb, bool suspend, const Console& console);

}  // namespace meshtrain::cli
