// The evaluator beside a training job: watches a folder of checkpoints and evaluates each new one,
// once.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"

namespace meshtrain::trainer {

struct EvaluateOptions {
  std::string run;          // the run (saving::RunIdOf) that was evaluated before,
  int64_t after_step = -1;  // its checkpoints up to this step
  Duration poll = std::chrono::seconds(1);
  // Nothing new for so long: the job is taken to be over (kDeadlineExceeded).
  Duration patience = std::chrono::hours(24);
  // Whether no checkpoint comes after this one; default: saving::IsFinal.
  std::function<bool(const checkpoint::Index& index)> is_final;
  // Whether the run whose newest checkpoint this is has ended and is about to be replaced: none of
  // its checkpoints is evaluated, and none is the final one. Default: it is not.
  std::function<bool(const checkpoint::Index& index)> is_replaced;
  Clock* clock = &SystemClock();
};

// Calls `evaluate` for each complete checkpoint of the newest run in the folder, in the order of
// their steps; a run that takes its place is evaluated from its first checkpoint on. Returns how
// many, when the newest is the final one and had its turn, or when `stop` was requested. One that
// was removed before its turn (the job keeps only so many) is passed over; one that is damaged is
// logged and passed over, unless it is the final one (kDataLoss); but not where `evaluate` says
// that the data is (kInput). Errors: evaluate's; a folder that cannot be read.
Result<int64_t> EvaluateLoop(
    const std::string& folder,
    const std::function<Status(const checkpoint::Checkpoint& checkpoint)>& evaluate,
    const EvaluateOptions& options, std::stop_token stop);

}  // namespace meshtrain::trainer
