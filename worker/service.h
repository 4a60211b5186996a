// One training process from its configuration to its exit code.
#pragma once

#include <functional>
#include <stop_token>

#include "worker/config.h"

namespace meshtrain::worker {

// Trains what the manifest declares. Messages go to stdout and stderr. Returns the exit code of
// runtime/cluster/contract.h; `stop_exit_code` says which one a requested stop means (143 for
// SIGTERM, 130 for SIGINT).
int Serve(const Config& config, std::stop_token stop, const std::function<int()>& stop_exit_code);

}  // namespace meshtrain::worker
