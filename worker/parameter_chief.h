// The chief of a job with parameter servers: its variables lie on the servers, its steps run on the
// workers, and this process schedules them, reports, validates and saves, by the same loop as a
// mesh.
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/spec/spec.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Also for worker 0 of a job without a chief, which then runs steps in the same process. Needs
// config.job.tf_config. OK when the job is done, Stopped() when it was asked to stop; kUnavailable
// of kPeers where servers or workers stay away longer than peerReturnSeconds.
Status RunParameterChief(const Config& config, spec::Manifest manifest, std::stop_token stop);

}  // namespace meshtrain::worker
