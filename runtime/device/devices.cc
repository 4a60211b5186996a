#include "runtime/device/devices.h"

#include <cstdlib>

#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/pjrt/pjrt_backend.h"

namespace meshtrain::device {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::unique_ptr<Backend>> Cpu(const BackendOptions& options) {
  return MakeCpuBackend({.threads = options.threads, .isolated = options.isolated});
}

Result<std::unique_ptr<Backend>> Discrete(const BackendOptions& options) {
  return MakeDiscreteBackend({.threads = options.threads});
}

Result<std::unique_ptr<Backend>> Pjrt(const BackendOptions& options) {
  return MakePjrtBackend({.plugin = Environment("MESHTRAIN_PJRT_PLUGIN"),
                          .options = Environment("MESHTRAIN_PJRT_OPTIONS"),
                          .devices = options.devices,
                          .cache = Environment("MESHTRAIN_PJRT_CACHE")});
}

struct Row {
  Kind kind;
  Result<std::unique_ptr<Backend>> (*make)(const BackendOptions& options);
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> kRows = {
      {{"cpu", "the processor; devices share its memory", true}, Cpu},
      {{"discrete", "the processor, each device with memory that no other can touch", true},
       Discrete},
      {{"pjrt", "devices of the plugin that MESHTRAIN_PJRT_PLUGIN names", HasPjrt()}, Pjrt},
  };
  return kRows;
}

}  // namespace

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kKinds = [] {
    std::vector<Kind> kinds;
    for (const Row& row : Rows()) kinds.push_back(row.kind);
    return kinds;
  }();
  return kKinds;
}

Result<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  std::string names;
  for (const Row& row : Rows()) {
    if (row.kind.name == options.kind) return row.make(options);
    names += (names.empty() ? "" : ", ") + std::string(row.kind.name);
  }
  return InvalidArgument("devices: expected a kind of " + names + ", got: " + options.kind)
      .From(Origin::kManifest);
}

}  // namespace meshtrain::device
