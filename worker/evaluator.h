// The evaluator of a job, of any strategy: evaluates each new checkpoint on `data.test`, on devices
// of its own, and writes metrics.jsonl (a line per checkpoint) and events of its own.
#pragma once

#include <functional>
#include <stop_token>

#include "runtime/spec/spec.h"
#include "worker/config.h"
#include "worker/ending.h"

namespace meshtrain::worker {

// Ends with 0 when the job's last checkpoint was evaluated. One that is started again goes on after
// the last line that it wrote. Needs config.job.tf_config and `checkpoint.path`.
Ending RunEvaluator(const Config& config, spec::Manifest manifest, std::stop_token stop,
                    const std::function<int()>& stop_exit_code);

}  // namespace meshtrain::worker
