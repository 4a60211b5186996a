#include "runtime/device/devices.h"

#include <algorithm>
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
  MT_ASSIGN_OR_RETURN(DiscreteOptions own,
                      ParseDiscreteOptions(Environment("MESHTRAIN_DISCRETE_OPTIONS")));
  own.threads = options.threads;
  if (own.devices > 0 && own.devices < options.devices) {
    return InvalidArgument("discrete: expected at least " + std::to_string(options.devices) +
                           " devices, got: " + std::to_string(own.devices) +
                           " (MESHTRAIN_DISCRETE_OPTIONS)")
        .From(Origin::kManifest);
  }
  const int devices = std::max(own.devices, options.devices);
  if (own.lost_after_steps >= 0 && devices > 0 && own.lost >= devices) {
    return InvalidArgument("discrete: lost: expected one of " + std::to_string(devices) +
                           " devices, from 0 on, got: " + std::to_string(own.lost) +
                           " (MESHTRAIN_DISCRETE_OPTIONS)")
        .From(Origin::kManifest);
  }
  return MakeDiscreteBackend(own);
}

Result<std::unique_ptr<Backend>> OfPlugin(const BackendOptions& options, std::string platform) {
  const std::string plugin = Environment("MESHTRAIN_PJRT_PLUGIN");
  auto made = MakePjrtBackend({.plugin = plugin,
                               .platform = std::move(platform),
                               .options = Environment("MESHTRAIN_PJRT_OPTIONS"),
                               .devices = options.devices,
                               .cache = Environment("MESHTRAIN_PJRT_CACHE")});
  // Where no plugin is named, what asks for one is: a manifest's field.
  if (!made.ok() && plugin.empty()) return made.status().At("program.devices.kind " + options.kind);
  return made;
}
Result<std::unique_ptr<Backend>> Pjrt(const BackendOptions& options) {
  return OfPlugin(options, "");
}
Result<std::unique_ptr<Backend>> Tpu(const BackendOptions& options) {
  return OfPlugin(options, "tpu");
}
Result<std::unique_ptr<Backend>> Cuda(const BackendOptions& options) {
  return OfPlugin(options, "cuda");
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
      {{"tpu", "the same, of a plugin that drives TPUs (libtpu)", HasPjrt()}, Tpu},
      {{"cuda", "the same, of a plugin that drives NVIDIA's GPUs", HasPjrt()}, Cuda},
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
