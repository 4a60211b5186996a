// Events that tell of a job.
#pragma once

#include <string>
#include <vector>

#include "cli/cluster/connection.h"

namespace meshtrain::cli {

// The events of the job, and of its pods where `pods`, oldest first, as JSON texts.
Result<std::vector<std::string>> EventsOf(Cluster& cluster, const std::string& job, bool pods);

}  // namespace meshtrain::cli
