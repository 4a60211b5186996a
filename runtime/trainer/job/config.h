// Where and how one process of a training job runs: what its command line, or a program of one's
// own, decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/checkpoint/save.h"
#include "runtime/trainer/job/environment.h"

namespace meshtrain::trainer {

struct JobConfig {
  std::string file;             // the manifest; "": job.manifest
  std::string manifest_name;    // what errors call the manifest; "": after where it is read from
  std::string checkpoint_path;  // in place of the manifest's checkpoint.path; "": that
  std::string output = "runs";  // for metrics, curves, checkpoints and the model
  std::string host = "127.0.0.1";
  std::optional<int> port = 0;  // 0: any free one; none: no server
  bool isolated = false;        // each virtual device has memory of its own
  int threads = 0;              // 0: one per core
  int64_t memory = 0;           // bytes that variables and steps may take; 0: as much as there is
  // How long the chief waits for the others' parts of a checkpoint; no option sets it.
  Duration parts_timeout = checkpoint::SaveOptions().parts_timeout;
  std::string version;  // of the program, for the report; "": not told
  JobEnvironment job;
};

}  // namespace meshtrain::trainer
