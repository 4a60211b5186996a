// Devices behind a PJRT plugin: a library with the C API that XLA's runtimes share (TPUs' libtpu,
// CUDA's plugin, the CPU's), loaded when it is asked for. Programs are StableHLO (lowering.h).
#pragma once

#include <memory>
#include <string>

#include "runtime/device/backend.h"

namespace meshtrain::device {

struct PjrtOptions {
  std::string plugin;    // path of the library
  std::string platform;  // what its devices must be: "tpu", "cuda"; "": whatever they are
  std::string options;   // of its client: "name=value,name=value"; 1, 0.5, true, text
  int devices = 0;       // at least so many must be there; the CPU's plugin makes as many; 0: any
  std::string cache;     // folder of compiled programs; "": none is kept
};

// Whether this build can load plugins. Without the C API's header it cannot.
bool HasPjrt();

// Errors: kUnimplemented (the build cannot); kNotFound (no such file), kFailedPrecondition (no
// plugin, of another API version, or of another platform), kInvalidArgument (options; fewer devices
// than asked for), and the plugin's own.
// It ends before main returns, so no variable with static storage holds it: what it has compiled
// uses variables of the plugin's, which go then.
Result<std::unique_ptr<Backend>> MakePjrtBackend(const PjrtOptions& options);

// How often this backend compiled a program, and how often it found one in its cache. `backend`
// must come from MakePjrtBackend.
struct PjrtCounts {
  int64_t compiled = 0, cached = 0;
  double lowering_seconds = 0, compile_seconds = 0;  // ours; the plugin's
};
PjrtCounts CountsOfPjrtBackend(const Backend& backend);

}  // namespace meshtrain::device
