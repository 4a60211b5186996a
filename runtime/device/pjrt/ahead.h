// Steps compiled for TPUs that are not there, by libtpu: what each needs of a device, without one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/device/pjrt/tpu_target.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device {

// Bytes of one device.
struct CompiledSizes {
  int64_t code = 0;
  int64_t arguments = 0;
  int64_t outputs = 0;   // with those that take an argument's place
  int64_t in_place = 0;  // of the outputs
  int64_t temporary = 0;
  double seconds = 0;  // that the compiler took
};

struct Ahead {
  std::string api;                   // "0.116", the plugin's
  int devices = 0;                   // of the target, as the plugin counts them
  std::vector<CompiledSizes> sizes;  // one for each program
};

struct AheadProgram {
  std::string name;  // what errors call it
  const plan::Plan* plan = nullptr;
};

struct AheadOptions {
  std::string library;  // libtpu's path
  mesh::TpuSlice target;
  Duration longest = std::chrono::minutes(30);  // that a program may take
};

// The programs as PJRT's backend writes them, compiled one after the other in a process of their
// own: libtpu ends its process where it meets what it does not expect. That process alone has the
// environment that keeps libtpu from asking a cloud's metadata service, from claiming this
// machine's TPUs and from leaving logs behind. It is forked: call while no other thread runs.
//
// Errors: kUnimplemented (the build cannot load plugins; an op without StableHLO, with its line);
// of kManifest: kNotFound (no such file), kFailedPrecondition (no library named; no plugin, of an
// unusable API version, or none that compiles ahead of time), kInvalidArgument (a plan's mesh has
// not as many devices as the target); kDeadlineExceeded; the compiler's own, naming the program;
// kInternal with its last words where it ended the process.
Result<Ahead> CompileAhead(const AheadOptions& options, std::span<const AheadProgram> programs);

}  // namespace meshtrain::device
