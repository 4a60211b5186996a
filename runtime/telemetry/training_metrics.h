// The metrics that every training process has, in one place, so that dashboards and alerts have one
// list to go by: 50 series, and two for each figure beside loss and accuracy. With those of its
// role a replica has at most 60 beside them.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "runtime/telemetry/metrics.h"

namespace meshtrain::telemetry {

// The figures of a job: meshtrain_loss{split}, meshtrain_accuracy{split}, and for each of the
// others, whose names are the manifest's, meshtrain_figure{figure, split}. A figure that was never
// set is no series.
class FigureGauges {
 public:
  // `split`: "train" or "test".
  FigureGauges(Metrics& metrics, std::string split) : metrics_(metrics), split_(std::move(split)) {}
  void Set(std::span<const std::pair<std::string, double>> figures);

 private:
  Gauge Add(const std::string& name);

  Metrics& metrics_;
  const std::string split_;
  std::map<std::string, Gauge, std::less<>> gauges_;
};

struct TrainingMetrics {
  explicit TrainingMetrics(Metrics& metrics);
  // Takes what is read of the process itself; to be called before the metrics are shown.
  void Look();

  Counter steps;                 // meshtrain_steps_total
  Counter bad_steps;             // meshtrain_bad_steps_total
  Counter examples;              // meshtrain_examples_total
  Histogram step_seconds;        // meshtrain_step_seconds
  Histogram input_wait_seconds;  // meshtrain_input_wait_seconds
  Gauge step;                    // meshtrain_step
  Gauge epoch;                   // meshtrain_epoch
  Gauge examples_per_second;     // meshtrain_examples_per_second
  FigureGauges train_figures, test_figures;
  Counter collective_bytes;      // meshtrain_collective_bytes_total
  Counter collective_seconds;    // meshtrain_collective_seconds_total
  Gauge planned_bytes;           // meshtrain_planned_memory_bytes
  Gauge resident_bytes;          // meshtrain_resident_memory_bytes
  Counter checkpoint_saves;      // meshtrain_checkpoint_saves_total
  Counter checkpoint_failures;   // meshtrain_checkpoint_failures_total
  Histogram checkpoint_seconds;  // meshtrain_checkpoint_save_seconds
  Gauge checkpoint_step;         // meshtrain_checkpoint_step
  Gauge ready;                   // meshtrain_ready
};

}  // namespace meshtrain::telemetry
