// What `meshtrain run` makes of its flags before it starts anything.
#pragma once

#include <string>

#include "operator/api/training_job.h"
#include "operator/local/runner.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

struct RunFlags {
  std::string file;
  std::string output;           // "": a folder of the run's own in `runs`
  std::string metrics_address;  // "": loopback, any port; "none"; "HOST:PORT"
  bool isolated = false;
  int threads = 0;  // of each process; 0: the cores are divided
};

struct PreparedRun {
  api::TrainingJob job;
  local::RunnerOptions options;
  bool goes_on = false;  // in a folder whose run of the same manifest is unfinished
};

// Whether `text` is what --metrics-address takes.
bool IsMetricsAddress(const std::string& text);

// Reads the manifest, checks its program against the data that this machine has, and chooses the
// folder, which it does not make. Errors: ReadJob's; with the place in the manifest what
// shows only when the program meets its data; of kOutput where no folder can be chosen.
Result<PreparedRun> PrepareRun(const RunFlags& flags);

}  // namespace meshtrain::cli
