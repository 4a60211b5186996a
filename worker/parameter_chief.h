// The chief of a job with parameter servers: its variables lie on the servers, its steps run on the
// workers, and this process schedules them, reports, validates and saves, by the same loop as a
// mesh.
#pragma once

#include <functional>
#include <stop_token>

#include "runtime/spec/spec.h"
#include "worker/config.h"
#include "worker/ending.h"

namespace meshtrain::worker {

// Also for worker 0 of a job without a chief, which then runs steps in the same process. Needs
// config.job.tf_config. Servers or workers that stay away longer than peerReturnSeconds end it with
// 138.
Ending RunParameterChief(const Config& config, spec::Manifest manifest, std::stop_token stop,
                         const std::function<int()>& stop_exit_code);

}  // namespace meshtrain::worker
