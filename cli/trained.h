// What `evaluate`, `predict` and `generate` share: a manifest, the weights that were trained, and
// the worker that applies them.
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"
#include "runtime/base/status.h"

namespace meshtrain::cli {

struct TrainedFlags {
  std::string file;
  std::string from;
  bool one_device = false;
  int threads = 0;  // 0: one per core
};
// FILE or --file, --from, --one-device, --threads.
void AddTrainedFlags(CLI::App* verb, TrainedFlags* flags);

// Checks the manifest and the weights' place, then starts `meshtrain-worker VERB` with `more`
// behind the flags above; the exit code.
int RunTrained(const char* verb, const TrainedFlags& flags, const std::vector<std::string>& more,
               const Console& console);

}  // namespace meshtrain::cli
