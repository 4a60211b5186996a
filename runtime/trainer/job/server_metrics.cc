#include "runtime/trainer/job/server_metrics.h"

#include <algorithm>

namespace meshtrain::trainer {
namespace {

constexpr char kWorkerSteps[] = "meshtrain_parameter_worker_steps_total";
constexpr char kWorkerStepsHelp[] =
    "Steps of the worker that has done the fewest, and of the one that has done the most.";

// No worker has undone a step, so neither of the two falls.
int64_t Least(const std::vector<int64_t>& steps) {
  return steps.empty() ? 0 : *std::min_element(steps.begin(), steps.end());
}
int64_t Most(const std::vector<int64_t>& steps) {
  return steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end());
}

}  // namespace

ServerMetrics::ServerMetrics(telemetry::Metrics& metrics, const parameter::Coordinator& coordinator)
    : coordinator_(coordinator),
      pulled_(metrics.AddCounter("meshtrain_parameter_pulled_bytes_total",
                                 "Bytes of variables that were pulled.")),
      pushed_(metrics.AddCounter("meshtrain_parameter_pushed_bytes_total",
                                 "Bytes of values that were pushed.")),
      rerun_(metrics.AddCounter("meshtrain_parameter_steps_rerun_total",
                                "Steps that a lost worker left.")),
      workers_lost_(metrics.AddCounter("meshtrain_parameter_workers_lost_total", "Workers lost.")),
      servers_lost_(
          metrics.AddCounter("meshtrain_parameter_servers_lost_total", "Parameter servers lost.")),
      damaged_(metrics.AddCounter(kDamagedFrames, kDamagedFramesHelp)),
      least_steps_(metrics.AddCounter(kWorkerSteps, kWorkerStepsHelp, {{"worker", "least"}})),
      most_steps_(metrics.AddCounter(kWorkerSteps, kWorkerStepsHelp, {{"worker", "most"}})),
      ready_(metrics.AddGauge("meshtrain_parameter_workers_ready", "Workers that take steps.")) {}

Status ServerMetrics::OnStepEnd(const train::StepInfo&) {
  const parameter::DispatcherStats now = coordinator_.stats();
  const auto add = [](telemetry::Counter& counter, int64_t to, int64_t from) {
    if (to > from) counter.Add(static_cast<double>(to - from));
  };
  add(pulled_, now.pulled_bytes, seen_.pulled_bytes);
  add(pushed_, now.pushed_bytes, seen_.pushed_bytes);
  add(rerun_, now.steps_rerun, seen_.steps_rerun);
  add(workers_lost_, now.workers_lost, seen_.workers_lost);
  add(servers_lost_, now.servers_lost, seen_.servers_lost);
  const int64_t damaged = parameter::DamagedFrames();
  add(damaged_, damaged, seen_damaged_);
  seen_damaged_ = damaged;
  add(least_steps_, Least(now.worker_steps), Least(seen_.worker_steps));
  add(most_steps_, Most(now.worker_steps), Most(seen_.worker_steps));
  ready_.Set(now.workers_ready);
  seen_ = now;
  return OkStatus();
}

}  // namespace meshtrain::trainer
