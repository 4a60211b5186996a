// What a worker process was asked to do, from its arguments and its environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/save.h"
#include "worker/environment.h"

namespace meshtrain::worker {

// Of this program: "0.1.0".
std::string_view Version();

struct Config {
  std::string file;             // the manifest; "": job.manifest
  std::string output = "runs";  // for metrics, curves, checkpoints and the model
  std::string host = "127.0.0.1";
  std::optional<int> port = 0;  // 0: any free one; none: no server
  bool isolated = false;
  int threads = 0;     // 0: one per core
  int64_t memory = 0;  // bytes that variables and steps may take; 0: as much as there is
  // How long the chief waits for the others' parts of a checkpoint; no option sets it.
  Duration parts_timeout = checkpoint::SaveOptions().parts_timeout;
  JobEnvironment job;
};

// The configuration, or the exit code of a process that only had to say something (--help, a wrong
// option).
std::variant<Config, int> ParseArguments(int argc, char** argv);

// "127.0.0.1:8080", ":0", "none". Errors: kInvalidArgument.
Status ParseMetricsAddress(const std::string& text, Config* config);

}  // namespace meshtrain::worker
