#include "runtime/telemetry/training_metrics.h"

#include <vector>

#include "runtime/base/memory.h"

namespace meshtrain::telemetry {
namespace {

// From a step of a small net on a CPU to one of a large one on many devices.
const std::vector<double> kStepBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                         0.1,   0.25,   1,     2.5,  10,    60};
const std::vector<double> kWaitBounds = {0.001, 0.01, 0.1, 1, 10};
const std::vector<double> kSaveBounds = {0.1, 1, 5, 30, 120, 600};

}  // namespace

TrainingMetrics::TrainingMetrics(Metrics& m)
    : steps(m.AddCounter("meshtrain_steps_total", "Training steps finished by this process.")),
      bad_steps(m.AddCounter("meshtrain_bad_steps_total",
                             "Training steps that changed nothing, since their loss or a gradient "
                             "was not finite.")),
      examples(m.AddCounter("meshtrain_examples_total",
                            "Training examples in the finished steps, of the global batch.")),
      step_seconds(
          m.AddHistogram("meshtrain_step_seconds", "Time of a training step.", kStepBounds)),
      input_wait_seconds(m.AddHistogram("meshtrain_input_wait_seconds",
                                        "Time a step waited for its batch.", kWaitBounds)),
      step(m.AddGauge("meshtrain_step", "The job's current step, across restarts.")),
      epoch(m.AddGauge("meshtrain_epoch",
                       "Passes over the data that are done, the current one in part.")),
      examples_per_second(
          m.AddGauge("meshtrain_examples_per_second",
                     "Examples per second over the last steps, of the global batch.")),
      train_figures(m, "train"),
      test_figures(m, "test"),
      collective_bytes(m.AddCounter("meshtrain_collective_bytes_total",
                                    "Bytes that this process sent for collectives.")),
      collective_seconds(m.AddCounter("meshtrain_collective_seconds_total",
                                      "Time that steps stood in collectives with other processes, "
                                      "or waited for them.")),
      planned_bytes(m.AddGauge(
          "meshtrain_planned_memory_bytes",
          "Peak memory per device that a training step needs, its kernels' scratch among it.")),
      resident_bytes(m.AddGauge("meshtrain_resident_memory_bytes",
                                "Memory of this process that lies in the machine's.")),
      checkpoint_saves(
          m.AddCounter("meshtrain_checkpoint_saves_total", "Checkpoints made complete.")),
      checkpoint_failures(m.AddCounter("meshtrain_checkpoint_failures_total",
                                       "Checkpoints that could not be saved.")),
      checkpoint_seconds(m.AddHistogram("meshtrain_checkpoint_save_seconds",
                                        "Time from the snapshot to a complete checkpoint.",
                                        kSaveBounds)),
      checkpoint_step(
          m.AddGauge("meshtrain_checkpoint_step", "Step of the newest complete checkpoint.")),
      ready(m.AddGauge("meshtrain_ready", "1 when training, 0 before and after.")) {}

void FigureGauges::Set(std::span<const std::pair<std::string, double>> figures) {
  for (const auto& [name, value] : figures) {
    const auto [gauge, is_new] = gauges_.try_emplace(name);
    if (is_new) gauge->second = Add(name);
    gauge->second.Set(value);
  }
}

Gauge FigureGauges::Add(const std::string& name) {
  if (name == "loss") return metrics_.AddGauge("meshtrain_loss", "Mean loss.", {{"split", split_}});
  if (name == "accuracy") {
    return metrics_.AddGauge("meshtrain_accuracy", "Mean accuracy, 0 to 1.", {{"split", split_}});
  }
  return metrics_.AddGauge("meshtrain_figure", "A figure beside loss and accuracy, by its name.",
                           {{"figure", name}, {"split", split_}});
}

void TrainingMetrics::Look() {
  if (const auto bytes = ResidentBytes()) resident_bytes.Set(static_cast<double>(*bytes));
}

}  // namespace meshtrain::telemetry
