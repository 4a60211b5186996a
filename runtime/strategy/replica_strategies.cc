// The strategies whose devices are replicas, each from its options.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/collective/communicator.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/join_team.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/multi_worker.h"
#include "runtime/strategy/strategy_impl.h"
#include "runtime/strategy/tpu.h"

namespace meshtrain::strategy {
namespace {

// How many devices `names` are, or `count` CPUs; each must be one that this build can use.
Result<int64_t> CountDevices(const std::vector<std::string>& names, int64_t count) {
  if (names.empty()) {
    if (count < 0) {
      return InvalidArgument("devices: expected a count of at least 1, got: " +
                             std::to_string(count));
    }
    return std::max<int64_t>(1, count);  // found: one CPU
  }
  if (count != 0 && count != static_cast<int64_t>(names.size())) {
    return InvalidArgument("devices: expected as many names as the count of " +
                           std::to_string(count) + ", got: " + std::to_string(names.size()));
  }
  std::set<mesh::Device> seen;
  for (const std::string& name : names) {
    MT_ASSIGN_OR_RETURN(const mesh::Device device, mesh::Device::Parse(name));
    if (device.process != 0) {
      return InvalidArgument("devices: expected devices of this process, got: " + name);
    }
    if (!seen.insert(device).second) {
      return InvalidArgument("devices: expected each device once, got twice: " + name);
    }
    if (device.kind != mesh::DeviceKind::kCpu) {
      return Unimplemented("device " + name + ": this build has no backend for " +
                           std::string(mesh::DeviceKindName(device.kind)) +
                           " devices, expected: cpu:N");
    }
  }
  return static_cast<int64_t>(names.size());
}

void WarnOfNccl(std::string_view strategy, std::string_view instead) {
  LogWarning("NCCL was asked for, but there are no GPUs",
             {{"strategy", std::string(strategy)}, {"instead", std::string(instead)}});
}

}  // namespace

std::vector<mesh::Device> ReplicaStrategy::OwnSetup::AllDevices() const {
  std::vector<mesh::Device> all;
  for (int p = 0; p < processes; ++p) {
    for (int64_t d = 0; d < devices; ++d) {
      all.push_back({.process = p, .index = static_cast<int>(d)});
    }
  }
  return all;
}

Result<std::unique_ptr<ReplicaStrategy>> ReplicaStrategy::Make(OwnSetup setup) {
  MT_RETURN_IF_ERROR(CheckPacking(setup.packing).At(setup.name));
  if (setup.process < 0 || setup.process >= setup.processes || setup.devices < 1) {
    return InvalidArgument(
        setup.name + ": expected a process of " + std::to_string(setup.processes) +
        " with at least one device, got: process " + std::to_string(setup.process) + " with " +
        std::to_string(setup.devices));
  }
  if (setup.processes > 1 && !setup.communicator) {
    return InvalidArgument(setup.name + ": expected a communicator between its " +
                           std::to_string(setup.processes) + " processes, got: none");
  }
  if (setup.processes == 1) setup.communicator = nullptr;
  MeshStrategy::Impl::Setup on_mesh{.mesh = {},
                                    .batch_axis = "batch",
                                    .layouts = {},
                                    .packing = setup.packing,
                                    .team = setup.team,
                                    .session = {.device_kind = setup.common.device_kind,
                                                .devices = static_cast<int>(setup.devices),
                                                .isolated = setup.common.isolated,
                                                .threads = setup.common.threads,
                                                .process = setup.process,
                                                .communicator = setup.communicator,
                                                .memory = setup.common.memory},
                                    .seed = setup.common.seed,
                                    .replicas = {},
                                    .layout = {}};
  if (setup.replicas_in_sync() == 1) {
    on_mesh.batch_axis.clear();  // the mesh of one device, whose programs hold no collective
  } else {
    MT_ASSIGN_OR_RETURN(on_mesh.mesh, mesh::Mesh::Create({{"batch", setup.replicas_in_sync()}},
                                                         setup.AllDevices()));
  }
  if (setup.described) {
    on_mesh.session.isolated = true;
    on_mesh.session.local_communicator =
        [ops = setup.ops](const mesh::Mesh& mesh,
                          uint64_t) -> Result<std::unique_ptr<collective::Communicator>> {
      return MakeCrossDeviceCommunicator(mesh, ops);
    };
  }
  auto own = std::make_unique<Own>(std::move(setup));
  on_mesh.replicas = [own = own.get()] { return own->Get(); };
  return std::unique_ptr<ReplicaStrategy>(new ReplicaStrategy(
      std::make_unique<MeshStrategy::Impl>(std::move(on_mesh)), std::move(own)));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::Default(StrategyOptions options) {
  return ReplicaStrategy::Make({.name = "DefaultStrategy", .common = options});
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::OneDevice(std::string_view device,
                                                             StrategyOptions options) {
  const auto count = CountDevices({std::string(device)}, 1);
  MT_RETURN_IF_ERROR(count.status().At("OneDeviceStrategy"));
  return ReplicaStrategy::Make({.name = "OneDeviceStrategy", .common = options});
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::Mirrored(MirroredOptions options) {
  ReplicaStrategy::OwnSetup setup{.name = "MirroredStrategy",
                                  .ops = options.cross_device_ops,
                                  .packing = options.packing,
                                  .common = options.common};
  const auto count = CountDevices(options.devices, options.count);
  MT_RETURN_IF_ERROR(count.status().At(setup.name));
  setup.devices = *count;
  if (setup.ops == CrossDeviceOps::kNccl) {
    WarnOfNccl(setup.name, "AUTO");
    setup.ops = CrossDeviceOps::kAuto;
  }
  setup.described = setup.ops != CrossDeviceOps::kAuto || setup.packing.given();
  return ReplicaStrategy::Make(std::move(setup));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::CentralStorage(CentralStorageOptions options) {
  ReplicaStrategy::OwnSetup setup{
      .name = "CentralStorageStrategy", .central = true, .common = options.common};
  const auto count = CountDevices(options.compute_devices, options.count);
  MT_RETURN_IF_ERROR(count.status().At(setup.name));
  setup.devices = *count;
  return ReplicaStrategy::Make(std::move(setup));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::MultiWorkerMirrored(MultiWorkerOptions options) {
  ReplicaStrategy::OwnSetup setup{.name = "MultiWorkerMirroredStrategy",
                                  .devices = options.devices_per_worker,
                                  .process = options.process,
                                  .processes = options.processes,
                                  .packing = options.packing,
                                  .common = options.common,
                                  .communicator = std::move(options.communicator)};
  if (options.team != nullptr) {
    setup.process = options.team->process();
    setup.processes = options.team->processes();
    setup.communicator = options.team->communicators();
    setup.team = std::move(options.team);
  }
  if (options.communication == Communication::kNccl) WarnOfNccl(setup.name, "RING");
  return ReplicaStrategy::Make(std::move(setup));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::Tpu(const TpuClusterResolver& resolver,
                                                       StrategyOptions options) {
  return Tpu(resolver, std::move(options), membership::ProcessEnvironment());
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::Tpu(const TpuClusterResolver& resolver,
                                                       StrategyOptions,
                                                       const membership::Environment& environment) {
  MT_ASSIGN_OR_RETURN(const TpuCluster tpu, ResolveTpu(resolver, environment));
  return Unimplemented("TPUStrategy on " + tpu.ToString() +
                       ": expected a build with the PJRT backend and a plugin for TPUs "
                       "(libtpu.so), got: a build for "
                       "CPUs; everything else of this strategy is MirroredStrategy");
}

Status JoinedWorker::Leave(Duration timeout) {
  return team == nullptr ? OkStatus() : team->Leave(timeout);
}

Result<JoinedWorker> JoinMultiWorkerMirrored(MultiWorkerOptions options, std::stop_token stop,
                                             const membership::Environment& environment) {
  JoinedWorker joined;
  MT_ASSIGN_OR_RETURN(joined.team,
                      membership::JoinTeam({.collective_deadline = options.common.deadline,
                                            .threads = options.common.threads},
                                           std::move(stop), environment));
  options.team = joined.team;
  if (joined.team == nullptr) {
    options.process = 0;
    options.processes = 1;
  }
  MT_ASSIGN_OR_RETURN(joined.strategy, Strategy::MultiWorkerMirrored(std::move(options)));
  return joined;
}

}  // namespace meshtrain::strategy
