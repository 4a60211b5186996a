#include "runtime/device/pjrt/topology.h"

#include <chrono>
#include <cstddef>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/device/pjrt/compile_options.h"

namespace meshtrain::device::pjrt {
namespace {

// The functions below that Plugin::Load does not ask for: the last of them, and those that a plugin
// may leave out.
bool KnowsTopologies(const PJRT_Api& api) {
  return api.struct_size > offsetof(PJRT_Api, PJRT_Executable_GetCompiledMemoryStats) &&
         api.PJRT_TopologyDescription_Create != nullptr &&
         api.PJRT_TopologyDescription_GetDeviceDescriptions != nullptr &&
         api.PJRT_Compile != nullptr && api.PJRT_Executable_GetCompiledMemoryStats != nullptr;
}

}  // namespace

Result<std::unique_ptr<Topology>> Topology::Create(PluginPtr plugin, const std::string& name) {
  if (!KnowsTopologies(plugin->api())) {
    return FailedPrecondition(plugin->path() +
                              ": expected a plugin that compiles for devices that are not there, "
                              "got: one of PJRT API " +
                              plugin->version() + " that cannot")
        .From(Origin::kManifest);
  }
  std::unique_ptr<Topology> made(new Topology);
  made->plugin_ = plugin;
  MT_PJRT_ARGS(PJRT_TopologyDescription_Create_Args, create);
  create.topology_name = name.data();
  create.topology_name_size = name.size();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin, PJRT_TopologyDescription_Create, create)
                         .From(Origin::kManifest)
                         .At(plugin->path()));
  made->topology_ = Handle<PJRT_TopologyDescription>(
      plugin, create.topology, [](const Plugin& p, PJRT_TopologyDescription* t) {
        MT_PJRT_ARGS(PJRT_TopologyDescription_Destroy_Args, args);
        args.topology = t;
        (void)MT_PJRT_CALL(p, PJRT_TopologyDescription_Destroy, args);
      });
  MT_PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args, devices);
  devices.topology = create.topology;
  MT_RETURN_IF_ERROR(
      MT_PJRT_CALL(*plugin, PJRT_TopologyDescription_GetDeviceDescriptions, devices));
  for (size_t i = 0; i < devices.num_descriptions; ++i) {
    MT_PJRT_ARGS(PJRT_DeviceDescription_Id_Args, id);
    id.device_description = devices.descriptions[i];
    MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin, PJRT_DeviceDescription_Id, id));
    made->ids_.push_back(id.id);
  }
  return made;
}

Result<CompiledSizes> Topology::Compile(const std::string& text) const {
  const std::string options = CompileOptions(ids_, false);
  static constexpr std::string_view kFormat = "mlir";
  std::string code = text;
  MT_PJRT_ARGS(PJRT_Program, program);
  program.code = code.data();
  program.code_size = code.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  MT_PJRT_ARGS(PJRT_Compile_Args, args);
  args.topology = topology_.get();
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  const Duration begin = SystemClock().Monotonic();
  MT_RETURN_IF_ERROR(Refused(MT_PJRT_CALL(*plugin_, PJRT_Compile, args)));
  const Duration end = SystemClock().Monotonic();
  const Handle<PJRT_Executable> executable(
      plugin_, args.executable, [](const Plugin& p, PJRT_Executable* e) {
        MT_PJRT_ARGS(PJRT_Executable_Destroy_Args, destroy);
        destroy.executable = e;
        (void)MT_PJRT_CALL(p, PJRT_Executable_Destroy, destroy);
      });
  MT_PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, stats);
  stats.executable = executable.get();
  MT_RETURN_IF_ERROR(MT_PJRT_CALL(*plugin_, PJRT_Executable_GetCompiledMemoryStats, stats));
  return CompiledSizes{.code = stats.generated_code_size_in_bytes,
                       .arguments = stats.argument_size_in_bytes,
                       .outputs = stats.output_size_in_bytes,
                       .in_place = stats.alias_size_in_bytes,
                       .temporary = stats.temp_size_in_bytes,
                       .seconds = std::chrono::duration<double>(end - begin).count()};
}

}  // namespace meshtrain::device::pjrt
