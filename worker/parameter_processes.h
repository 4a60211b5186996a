// The roles that serve under the strategy ParameterServer: a ps holds variables, a worker runs the
// steps it is sent. Both learn everything from the chief (trainer/job/server_job.cc) and live until
// it says that the job is done (OK), until it does not come or come back in time (kPeers), until
// they are asked to stop and the chief, which may have been asked at the same time, has come to its
// end (cluster::Stopped(); stop_times.h), or, a ps, until its disk fails or stays full
// (kOutput).
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Both need config.job.tf_config. The log of a ps lies in `checkpoint.path`, in a folder of its
// own.
Status RunParameterServer(const trainer::JobConfig& config, const manifest::Manifest& manifest,
                          std::stop_token stop);
Status RunParameterWorker(const trainer::JobConfig& config, const manifest::Manifest& manifest,
                          std::stop_token stop);

}  // namespace meshtrain::worker
