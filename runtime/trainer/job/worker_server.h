// The server of a process that runs the steps of parameter servers' workers, and the folder that
// all processes of such a job share.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/parameter/worker/worker_server.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::trainer {

// What its steps run with: its own devices, and what the command line says.
execute::SessionOptions WorkerSessionOf(const JobConfig& config, const manifest::Devices& own);

// The server of this task, listening at its port; also for worker 0 where it is the chief as well.
Result<std::unique_ptr<parameter::WorkerServer>> ServeWorker(const JobConfig& config,
                                                             const manifest::Manifest& manifest);

// `checkpoint.path`, absolute. Servers write their parts of a checkpoint themselves, so one that
// only the chief's output folder has will not do. Errors: kInvalidArgument of kManifest where
// there is none.
Result<std::string> SharedFolder(const JobConfig& config, const manifest::Manifest& manifest);

}  // namespace meshtrain::trainer
