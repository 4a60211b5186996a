// Devices that are described and not there: a plugin compiles for them, and runs nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device/pjrt/ahead.h"
#include "runtime/device/pjrt/plugin.h"

namespace meshtrain::device::pjrt {

class Topology {
 public:
  // `name` as the plugin has it, "v5e:2x4". Errors: kFailedPrecondition for a plugin that knows no
  // topologies; the plugin's own.
  static Result<std::unique_ptr<Topology>> Create(PluginPtr plugin, const std::string& name);

  int devices() const { return static_cast<int>(ids_.size()); }

  // A program of StableHLO's text for a replica on each device. Errors: as Refused; the plugin's.
  Result<CompiledSizes> Compile(const std::string& text) const;

 private:
  Topology() = default;
  PluginPtr plugin_;
  Handle<PJRT_TopologyDescription> topology_;
  std::vector<int> ids_;  // of the devices, in the plugin's order
};

}  // namespace meshtrain::device::pjrt
