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
  int64_t after_step = -1;  // checkpoints up to this step were evaluated before
  Duration poll = std::chrono::seconds(1);
  // Nothing new for so long: the job is taken to be over (kDeadlineExceeded).
  Duration patience = std::chrono::hours(24);
  // Whether no checkpoint comes after this one; default: saving::IsFinal.
  std::function<bool(const checkpoint::Index& index)> is_final;
  Clock* clock = &SystemClock();
};

// Calls `evaluate` for each complete checkpoint, in the order of their steps; returns how many,
// when the newest is the final one and had its turn, or when `stop` was requested. One that was
// removed before its turn (the job keeps only so many) is passed over; one that is damaged is
// logged and passed over, unless it is the final one (kDataLoss); but not where `evaluate` says
// that the data is (kInput). Errors: evaluate's; a folder that cannot be read.
Result<int64_t> EvaluateLoop(
    const std::string& folder,
    const std::function<Status(const checkpoint::Checkpoint& checkpoint)>& evaluate,
    const EvaluateOptions& options, std::stop_token stop);

}  // namespace meshtrain::trainer
