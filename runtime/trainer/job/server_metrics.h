// Figures of parameter servers beside those of every training.
#pragma once

#include <cstdint>

#include "runtime/base/status.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/loop.h"

namespace meshtrain::trainer {

// Of every role: what parameter::DamagedFrames counts.
inline constexpr char kDamagedFrames[] = "meshtrain_parameter_damaged_frames_total";
inline constexpr char kDamagedFramesHelp[] =
    "Frames whose bytes had changed on the way; they were sent again.";

class ServerMetrics final : public train::Callback {
 public:
  // Both outlive it.
  ServerMetrics(telemetry::Metrics& metrics, const parameter::Coordinator& coordinator);
  Status OnStepEnd(const train::StepInfo&) override;

 private:
  const parameter::Coordinator& coordinator_;
  telemetry::Counter pulled_, pushed_, rerun_, workers_lost_, servers_lost_, damaged_;
  // Of the worker that has done the fewest, and the most; a series each would be as many as
  // workers.
  telemetry::Counter least_steps_, most_steps_;
  telemetry::Gauge ready_;
  parameter::DispatcherStats seen_;
  int64_t seen_damaged_ = 0;
};

}  // namespace meshtrain::trainer
