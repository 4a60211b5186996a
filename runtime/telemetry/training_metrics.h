// The metrics that every training process has, in one place, so that dashboards and alerts have one
// list to go by: 49 series. With those of its role a replica has at most 60.
#pragma once

#include "runtime/telemetry/metrics.h"

namespace meshtrain::telemetry {

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
  Gauge train_loss;              // meshtrain_loss{split="train"}
  Gauge test_loss;               // meshtrain_loss{split="test"}
  Gauge train_accuracy;          // meshtrain_accuracy{split="train"}
  Gauge test_accuracy;           // meshtrain_accuracy{split="test"}
  Counter collective_bytes;      // meshtrain_collective_bytes_total
  Gauge planned_bytes;           // meshtrain_planned_memory_bytes
  Gauge resident_bytes;          // meshtrain_resident_memory_bytes
  Counter checkpoint_saves;      // meshtrain_checkpoint_saves_total
  Counter checkpoint_failures;   // meshtrain_checkpoint_failures_total
  Histogram checkpoint_seconds;  // meshtrain_checkpoint_save_seconds
  Gauge checkpoint_step;         // meshtrain_checkpoint_step
  Gauge ready;                   // meshtrain_ready
};

}  // namespace meshtrain::telemetry
