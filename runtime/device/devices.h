// The kinds of devices, and what makes a backend of one by its name: the one place that knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/device/backend.h"

namespace meshtrain::device {

struct Kind {
  std::string_view name;   // as `devices.kind` of a manifest writes it
  std::string_view about;  // "host memory, merged"
  bool built = true;       // false: this build lacks it
};
// In the order in which people are told of them.
const std::vector<Kind>& Kinds();

struct BackendOptions {
  std::string kind = "cpu";
  int threads = 0;        // of the host; 0: one per core
  bool isolated = false;  // CpuOptions
  // How many devices this process uses, where a backend must know at the start; 0: those that there
  // are.
  int devices = 0;
};
// Errors: kInvalidArgument (no such kind, with those that there are; fewer devices than asked for),
// kUnimplemented (the build lacks it), and the backend's own.
Result<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

}  // namespace meshtrain::device
