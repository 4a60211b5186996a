#include "runtime/trainer/job/strategy.h"

#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/recipe/step_plan.h"

namespace meshtrain::trainer {
namespace {

using strategy::MeshStrategy;
using strategy::Strategy;

// By the name that manifests have for it (manifest::CrossDeviceOpsNames).
strategy::CrossDeviceOps OpsOf(const std::string& name) {
  using strategy::CrossDeviceOps;
  static const std::map<std::string, CrossDeviceOps> kOps = {
      {"Auto", CrossDeviceOps::kAuto},
      {"NCCL", CrossDeviceOps::kNccl},
      {"HierarchicalCopy", CrossDeviceOps::kHierarchicalCopy},
      {"ReductionToOneDevice", CrossDeviceOps::kReductionToOneDevice},
      {"Ring", CrossDeviceOps::kRing}};
  return kOps.at(name);
}

strategy::Communication CommunicationOf(const std::string& name) {
  using strategy::Communication;
  static const std::map<std::string, Communication> kWays = {{"AUTO", Communication::kAuto},
                                                             {"RING", Communication::kRing},
                                                             {"NCCL", Communication::kNccl}};
  return kWays.at(name);
}

// Of manifest::Partitioners().
parameter::Partitioner PartitionerOf(const choice::Choice& choice) {
  const choice::Options& options = choice.options;
  if (choice.kind == "fixed_shards") return parameter::FixedShards{options.Int("num_shards", 1)};
  if (choice.kind == "min_size") {
    const parameter::MinSize fallback;
    return parameter::MinSize{options.Int("min_shard_bytes", fallback.min_shard_bytes),
                              options.Int("max_shards", fallback.max_shards)};
  }
  MT_CHECK(choice.kind == "max_size");
  return parameter::MaxSize{options.Int("max_shard_bytes", 1), options.Int("max_shards", 0)};
}

// Any of them as what they have in common.
template <typename Made>
Result<std::unique_ptr<MeshStrategy>> Up(Result<Made> made) {
  MT_RETURN_IF_ERROR(made.status());
  return std::unique_ptr<MeshStrategy>(std::move(*made));
}

strategy::StrategyOptions CommonOptionsOf(const JobConfig& config,
                                          const manifest::Program& program) {
  return {.seed = program.seed,
          .threads = config.threads,
          .isolated = config.isolated,
          .memory = config.memory,
          .device_kind = std::string(mesh::DeviceKindName(program.devices.kind))};
}

Result<std::unique_ptr<MeshStrategy>> MakeNamed(const JobConfig& config,
                                                const manifest::Manifest& manifest,
                                                const mesh::Mesh& mesh,
                                                std::shared_ptr<membership::Team> team) {
  const manifest::Program& program = manifest.program;
  const strategy::StrategyOptions common = CommonOptionsOf(config, program);
  const int64_t devices = program.devices.count.value_or(1);
  const std::string& name = manifest.strategy;
  if (name == "Default") return Up(Strategy::Default(common));
  if (name == "OneDevice") return Up(Strategy::OneDevice(common.device_kind + ":0", common));
  if (name == "Mirrored") return Up(Strategy::Mirrored(MirroredOptionsOf(config, program)));
  if (name == "CentralStorage") {
    return Up(
        Strategy::CentralStorage({.compute_devices = {}, .count = devices, .common = common}));
  }
  if (name == "MultiWorkerMirrored") {
    strategy::MultiWorkerOptions options = MultiWorkerOptionsOf(config, program);
    options.team = std::move(team);
    return Up(Strategy::MultiWorkerMirrored(std::move(options)));
  }
  if (name == "TPU") return Up(Strategy::Tpu({.chips = devices}, common));
  // Mesh; and without a name, what the program says.
  return Strategy::Mesh({.mesh = mesh,
                         .layouts = {},  // the program's rules are in its trace
                         .team = std::move(team),
                         .packing = recipe::PackingOf(program),
                         .common = common});
}

// Where a manifest says no count there is one, whatever a plugin has: plans do not ask for devices.
Status TellOfIdleDevices(const manifest::Program& program, MeshStrategy& strategy) {
  if (program.devices.count || !program.devices.kind_given) return OkStatus();
  MT_ASSIGN_OR_RETURN(const execute::Session* session, strategy.session());
  const auto used =
      static_cast<int64_t>(strategy.mesh().LocalRanks(session->options().process).size());
  if (session->devices_there() <= used) return OkStatus();
  LogWarning(
      "there are devices that this job does not use; devices.count, or a mesh, says how many",
      {{"used", std::to_string(used)}, {"there", std::to_string(session->devices_there())}});
  return OkStatus();
}

}  // namespace

strategy::MirroredOptions MirroredOptionsOf(const JobConfig& config,
                                            const manifest::Program& program) {
  const manifest::Mirrored spec = program.mirrored.value_or(manifest::Mirrored{});
  return {.devices = {},
          .count = program.devices.count.value_or(1),
          .cross_device_ops = OpsOf(spec.cross_device_ops),
          .packing = recipe::PackingOf(program),
          .common = CommonOptionsOf(config, program)};
}

strategy::MultiWorkerOptions MultiWorkerOptionsOf(const JobConfig& config,
                                                  const manifest::Program& program) {
  const manifest::MultiWorkerMirrored spec =
      program.multi_worker_mirrored.value_or(manifest::MultiWorkerMirrored{});
  return {.team = nullptr,
          .communicator = nullptr,
          .devices_per_worker = program.devices.count.value_or(1),
          .communication = CommunicationOf(spec.communication),
          .packing = recipe::PackingOf(program),
          .common = CommonOptionsOf(config, program)};
}

strategy::ParameterServerOptions ServerOptionsOf(const manifest::Manifest& manifest) {
  const manifest::ParameterServer spec =
      manifest.program.parameter_server.value_or(manifest::ParameterServer{});
  strategy::ParameterServerOptions options{.coordinator = {},
                                           .steps_in_flight = spec.steps_in_flight.value_or(0)};
  parameter::CoordinatorOptions& o = options.coordinator;
  if (spec.partitioner) o.partitioner = PartitionerOf(*spec.partitioner);
  o.seed = manifest.program.seed;
  o.staleness_bound = spec.staleness_bound;
  o.keep = static_cast<int>(manifest.checkpoint.keep);
  return options;
}

bool IsIsolated(const JobConfig& config, const manifest::Manifest& manifest) {
  return config.isolated || recipe::IsIsolated(manifest.program);
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
  MT_RETURN_IF_ERROR(TellOfIdleDevices(manifest.program, *made));
  return made;
}

Result<std::unique_ptr<strategy::ServerStrategy>> MakeServerStrategy(
    const JobConfig& config, const manifest::Manifest& manifest, const std::string& folder,
    const std::string& restore, std::stop_token stop) {
  strategy::ParameterServerOptions options = ServerOptionsOf(manifest);
  parameter::CoordinatorOptions& o = options.coordinator;
  o.cluster = config.job.tf_config->cluster;
  MT_ASSIGN_OR_RETURN(o.identity, parameter::IdentityOf(ProcessEnvironment()));
  o.restore = restore;
  o.checkpoint_folder = folder;
  o.return_timeout = config.job.peer_return;
  return Strategy::ParameterServer(std::move(options), std::move(stop));
}

}  // namespace meshtrain::trainer
