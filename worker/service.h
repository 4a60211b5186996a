// One training process from its configuration to its end.
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Trains what the manifest declares, whatever the role of this process. Messages go to stdout and
// stderr, the error that is returned too. cluster::Stopped() where `stop` was requested before the
// end.
Status Serve(const trainer::JobConfig& config, std::stop_token stop);

}  // namespace meshtrain::worker
