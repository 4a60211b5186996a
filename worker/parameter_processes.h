// The roles that serve under the strategy ParameterServer: a ps holds variables, a worker runs the
// steps it is sent. Both learn everything from the chief (engine.h) and live until it says
// that the job is done (OK), until it does not come or come back in time (kPeers), until they are
// asked to stop and the chief, which may have been asked at the same time, has come to its end
// (Stopped(); leaving.h), or, a ps, until its disk fails (kOutput).
#pragma once

#include <memory>
#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/parameter/worker/worker_server.h"
#include "runtime/recipe/recipe.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Of every role: what parameter::DamagedFrames counts.
inline constexpr char kDamagedFrames[] = "meshtrain_parameter_damaged_frames_total";
inline constexpr char kDamagedFramesHelp[] =
    "Frames whose bytes had changed on the way; they were sent again.";

// Both need config.job.tf_config. The log of a ps lies in `checkpoint.path`, in a folder of its
// own.
Status RunParameterServer(const Config& config, const manifest::Manifest& manifest,
                          std::stop_token stop);
Status RunParameterWorker(const Config& config, const manifest::Manifest& manifest,
                          std::stop_token stop);

// The server of this task, listening at its port; also for worker 0 where it is the chief as well.
Result<std::unique_ptr<parameter::WorkerServer>> ServeWorker(const Config& config,
                                                             const manifest::Manifest& manifest);

// `checkpoint.path`, absolute. Servers write their parts of a checkpoint themselves, so one that
// only the chief's output folder has will not do. Errors: kInvalidArgument of kManifest where
// there is none.
Result<std::string> SharedFolder(const Config& config, const manifest::Manifest& manifest);

}  // namespace meshtrain::worker
