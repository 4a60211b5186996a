// What a process beside the training loop (ps, a ps's worker, evaluator) answers at its address:
// /metrics, /healthz, /readyz and /progress.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/cluster/contract.h"
#include "runtime/telemetry/endpoints.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/telemetry/progress.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Thread-safe after Create.
class Presence {
 public:
  // `healthy`: asked by /healthz; absent: always. Errors: kUnavailable for an address that cannot
  // be bound.
  static Result<std::unique_ptr<Presence>> Create(const trainer::JobConfig& config,
                                                  const std::string& job,
                                                  std::function<bool()> healthy = {});
  telemetry::Metrics& metrics() { return metrics_; }
  telemetry::ProgressBoard& board() { return board_; }
  void Ready();
  // Where it answers; nothing where `config` gives no address.
  std::optional<int> port() const {
    return endpoints_ == nullptr ? std::nullopt : std::optional(endpoints_->port());
  }

 private:
  explicit Presence(const telemetry::ReplicaLabels& labels);

  telemetry::Metrics metrics_;
  telemetry::Gauge ready_gauge_;
  telemetry::ProgressBoard board_;
  std::atomic<bool> ready_ = false;
  std::unique_ptr<telemetry::Endpoints> endpoints_;  // last: its threads read what stands above
};

}  // namespace meshtrain::worker
