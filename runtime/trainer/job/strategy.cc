#include "runtime/trainer/job/strategy.h"

#include <utility>

#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"

namespace meshtrain::trainer {
namespace {

using strategy::MeshStrategy;
using strategy::Strategy;

strategy::CrossDeviceOps OpsOf(manifest::CrossDeviceOps ops) {
  switch (ops) {
    case manifest::CrossDeviceOps::kAuto:
      return strategy::CrossDeviceOps::kAuto;
    case manifest::CrossDeviceOps::kNccl:
      return strategy::CrossDeviceOps::kNccl;
    case manifest::CrossDeviceOps::kHierarchicalCopy:
      return strategy::CrossDeviceOps::kHierarchicalCopy;
    case manifest::CrossDeviceOps::kReductionToOneDevice:
      return strategy::CrossDeviceOps::kReductionToOneDevice;
    case manifest::CrossDeviceOps::kRing:
      return strategy::CrossDeviceOps::kRing;
  }
  return strategy::CrossDeviceOps::kAuto;
}

parameter::Partitioner PartitionerOf(const manifest::ParameterServer& spec) {
  struct Visitor {
    parameter::Partitioner operator()(const manifest::WholeVariables&) const {
      return parameter::Whole{};
    }
    parameter::Partitioner operator()(const manifest::FixedShards& s) const {
      return parameter::FixedShards{s.num_shards};
    }
    parameter::Partitioner operator()(const manifest::MinSize& s) const {
      return parameter::MinSize{s.min_shard_bytes, s.max_shards};
    }
    parameter::Partitioner operator()(const manifest::MaxSize& s) const {
      return parameter::MaxSize{s.max_shard_bytes, s.max_shards};
    }
  };
  return std::visit(Visitor{}, spec.partitioner);
}

// Any of them as what they have in common.
template <typename Made>
Result<std::unique_ptr<MeshStrategy>> Up(Result<Made> made) {
  MT_RETURN_IF_ERROR(made.status());
  return std::unique_ptr<MeshStrategy>(std::move(*made));
}

Result<std::unique_ptr<MeshStrategy>> MakeNamed(const JobConfig& config,
                                                const manifest::Manifest& manifest,
                                                const mesh::Mesh& mesh,
                                                std::shared_ptr<membership::Team> team) {
  const manifest::Program& program = manifest.program;
  const strategy::StrategyOptions common{
      .seed = program.seed,
      .threads = config.threads,
      .isolated = config.isolated,
      .memory = config.memory,
      .device_kind = std::string(mesh::DeviceKindName(program.devices.kind))};
  const strategy::Packing packing = recipe::PackingOf(program);
  const int64_t devices = program.devices.count.value_or(1);
  const std::string& name = manifest.strategy;
  if (name == "Default") return Up(Strategy::Default(common));
  if (name == "OneDevice") return Up(Strategy::OneDevice(common.device_kind + ":0", common));
  if (name == "Mirrored") {
    const manifest::Mirrored spec = program.mirrored.value_or(manifest::Mirrored{});
    return Up(Strategy::Mirrored({.devices = {},
                                  .count = devices,
                                  .cross_device_ops = OpsOf(spec.cross_device_ops),
                                  .packing = packing,
                                  .common = common}));
  }
  if (name == "CentralStorage") {
    return Up(
        Strategy::CentralStorage({.compute_devices = {}, .count = devices, .common = common}));
  }
  if (name == "MultiWorkerMirrored") {
    return Up(Strategy::MultiWorkerMirrored({.team = std::move(team),
                                             .communicator = nullptr,
                                             .devices_per_worker = devices,
                                             .packing = packing,
                                             .common = common}));
  }
  if (name == "TPU") {
    return Up(Strategy::Tpu({.chips = devices}, common));
  }
  // Mesh; and without a name, what the program says.
  return Strategy::Mesh({.mesh = mesh,
                         .layouts = {},  // the program's rules are in its trace
                         .team = std::move(team),
                         .packing = packing,
                         .common = common});
}

}  // namespace

bool IsIsolated(const JobConfig& config, const manifest::Manifest& manifest) {
  const auto& mirrored = manifest.program.mirrored;
  return config.isolated || (mirrored && mirrored->isolated()) ||
         manifest.program.devices.kind != mesh::DeviceKind::kCpu;
}

Result<std::unique_ptr<MeshStrategy>> MakeMeshStrategy(const JobConfig& config,
                                                       const manifest::Manifest& manifest,
                                                       const recipe::Declared& declared,
                                                       std::shared_ptr<membership::Team> team) {
  MT_ASSIGN_OR_RETURN(auto made, MakeNamed(config, manifest, declared.mesh(), std::move(team)));
  if (made->mesh() != declared.mesh()) {
    return Internal(made->name() + ": expected the program's mesh " + declared.mesh().ToString() +
                    ", got: " + made->mesh().ToString());
  }
  return made;
}

Result<std::unique_ptr<strategy::ServerStrategy>> MakeServerStrategy(
    const JobConfig& config, const manifest::Manifest& manifest, const std::string& folder,
    const std::string& restore, std::stop_token stop) {
  const manifest::ParameterServer spec =
      manifest.program.parameter_server.value_or(manifest::ParameterServer{});
  strategy::ParameterServerOptions options{.coordinator = {},
                                           .steps_in_flight = spec.steps_in_flight.value_or(0)};
  parameter::CoordinatorOptions& o = options.coordinator;
  o.cluster = config.job.tf_config->cluster;
  MT_ASSIGN_OR_RETURN(o.identity, parameter::IdentityOf(ProcessEnvironment()));
  o.partitioner = PartitionerOf(spec);
  o.seed = manifest.program.seed;
  o.restore = restore;
  o.staleness_bound = spec.staleness_bound;
  o.checkpoint_folder = folder;
  o.keep = static_cast<int>(manifest.checkpoint.keep);
  o.return_timeout = config.job.peer_return;
  return Strategy::ParameterServer(std::move(options), std::move(stop));
}

}  // namespace meshtrain::trainer
