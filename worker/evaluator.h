// The evaluator of a job, of any strategy: evaluates each new checkpoint on `data.test`, on devices
// of its own, and writes metrics.jsonl (a line per checkpoint) and events of its own.
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"
#include "worker/config.h"

namespace meshtrain::worker {

// OK when the job's last checkpoint was evaluated. One that is started again goes on after the last
// line that it wrote; of another run than those lines are, it begins them anew. In a folder of the
// job's own (trainer::CheckpointFolder) a run that it has read to its end is one that the job
// replaces: it waits for the next. Needs config.job.tf_config and `checkpoint.path`.
Status RunEvaluator(const trainer::JobConfig& config, manifest::Manifest manifest,
                    std::stop_token stop);

}  // namespace meshtrain::worker
