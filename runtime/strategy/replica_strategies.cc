// The strategies whose devices are replicas, each from its options.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/collective/communicator.h"
#include "runtime/device/devices.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/join_team.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/multi_worker.h"
#include "runtime/strategy/strategy_impl.h"
#include "runtime/strategy/tpu.h"

namespace meshtrain::strategy {
namespace {

struct Devices {
  int64_t count = 1;
  std::vector<int> indices;  // empty: from 0 on
  std::string kind;
};

std::string KindsOfThisBuild() {
  std::string names;
  for (const device::Kind& kind : device::Kinds()) {
    if (kind.built) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return names;
}

// How many there are of a kind: a plugin's, or one where there are as many as a mesh asks for.
Result<int64_t> DevicesFound(const std::string& kind) {
  MT_ASSIGN_OR_RETURN(const auto backend, device::MakeBackend({.kind = kind}));
  return std::max(1, backend->traits().devices);
}

// The devices that `names` are, of one kind that this build can use; or `count` of `kind`, which is
// the options'.
Result<Devices> FindDevices(const std::vector<std::string>& names, int64_t count,
                            const std::string& kind) {
  if (names.empty()) {
    if (count < 0) {
      return InvalidArgument("devices: expected a count of at least 1, got: " +
                             std::to_string(count));
    }
    if (count == 0) {
      MT_ASSIGN_OR_RETURN(count, DevicesFound(kind));
    }
    return Devices{.count = count, .indices = {}, .kind = kind};
  }
  if (count != 0 && count != static_cast<int64_t>(names.size())) {
    return InvalidArgument("devices: expected as many names as the count of " +
                           std::to_string(count) + ", got: " + std::to_string(names.size()));
  }
  Devices found{.count = static_cast<int64_t>(names.size()), .indices = {}, .kind = ""};
  std::set<mesh::Device> seen;
  for (const std::string& name : names) {
    MT_ASSIGN_OR_RETURN(const mesh::Device device, mesh::Device::Parse(name));
    if (device.process != 0) {
      return InvalidArgument("devices: expected devices of this process, got: " + name);
    }
    if (!seen.insert(device).second) {
      return InvalidArgument("devices: expected each device once, got twice: " + name);
    }
    const std::string_view its = mesh::DeviceKindName(device.kind);
    const std::vector<device::Kind>& kinds = device::Kinds();
    if (std::none_of(kinds.begin(), kinds.end(),
                     [&](const device::Kind& known) { return known.built && known.name == its; })) {
      return Unimplemented("device " + name + ": this build has no backend for " +
                           std::string(its) + " devices, expected one of the kinds " +
                           KindsOfThisBuild());
    }
    if (found.kind.empty()) found.kind = its;
    if (found.kind != its) {
      return InvalidArgument("devices: expected devices of one kind, got: " + names[0] + " and " +
                             name);
    }
    found.indices.push_back(device.index);
  }
  // What says nothing has the kind "cpu".
  if (kind != "cpu" && kind != found.kind) {
    return InvalidArgument("devices: expected devices of the kind " + kind + ", got: " + names[0]);
  }
  return found;
}

void WarnOfNccl(std::string_view strategy, std::string_view instead) {
  LogWarning("NCCL was asked for, but there are no GPUs",
             {{"strategy", std::string(strategy)}, {"instead", std::string(instead)}});
}

}  // namespace

int ReplicaStrategy::OwnSetup::DevicesNeeded() const {
  int most = 0;
  for (int64_t d = 0; d < devices; ++d) most = std::max(most, IndexOf(d) + 1);
  return most;
}

Status ReplicaStrategy::OwnSetup::UseDevices(const std::vector<std::string>& names, int64_t count) {
  auto found = FindDevices(names, count, common.device_kind);
  MT_RETURN_IF_ERROR(found.status().At(name));
  devices = found->count;
  indices = std::move(found->indices);
  common.device_kind = std::move(found->kind);
  return OkStatus();
}

std::vector<mesh::Device> ReplicaStrategy::OwnSetup::AllDevices() const {
  std::vector<mesh::Device> all;
  for (int p = 0; p < processes; ++p) {
    for (int64_t d = 0; d < devices; ++d) {
      all.push_back(
          {.kind = mesh::FindDeviceKind(common.device_kind).value_or(mesh::DeviceKind::kCpu),
           .process = p,
           .index = IndexOf(d)});
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
                                                .devices = setup.DevicesNeeded(),
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
    MT_ASSIGN_OR_RETURN(on_mesh.mesh, mesh::Mesh::Create({}, setup.AllDevices()));
  } else {
    MT_ASSIGN_OR_RETURN(on_mesh.mesh, mesh::Mesh::Create({{"batch", setup.replicas_in_sync()}},
                                                         setup.AllDevices()));
  }
  if (setup.described) {
    on_mesh.session.isolated = true;
  }
  // kAuto is the backend's own way.
  if (setup.ops != CrossDeviceOps::kAuto) {
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
  ReplicaStrategy::OwnSetup setup{.name = "OneDeviceStrategy", .common = std::move(options)};
  MT_RETURN_IF_ERROR(setup.UseDevices({std::string(device)}, 1));
  return ReplicaStrategy::Make(std::move(setup));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::Mirrored(MirroredOptions options) {
  ReplicaStrategy::OwnSetup setup{.name = "MirroredStrategy",
                                  .ops = options.cross_device_ops,
                                  .packing = options.packing,
                                  .common = options.common};
  MT_RETURN_IF_ERROR(setup.UseDevices(options.devices, options.count));
  if (setup.ops == CrossDeviceOps::kNccl) {
    // A plugin of GPUs makes their sums, by NCCL.
    if (setup.common.device_kind != "cuda") WarnOfNccl(setup.name, "AUTO");
    setup.ops = CrossDeviceOps::kAuto;
  }
  setup.described = setup.ops != CrossDeviceOps::kAuto || setup.packing.given();
  return ReplicaStrategy::Make(std::move(setup));
}

Result<std::unique_ptr<ReplicaStrategy>> Strategy::CentralStorage(CentralStorageOptions options) {
  ReplicaStrategy::OwnSetup setup{
      .name = "CentralStorageStrategy", .central = true, .common = options.common};
  MT_RETURN_IF_ERROR(setup.UseDevices(options.compute_devices, options.count));
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
    setup.communicator =
        options.team->communicators(/*ring=*/options.communication != Communication::kAuto);
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
                                                       StrategyOptions options,
                                                       const membership::Environment& environment) {
  ReplicaStrategy::OwnSetup setup{.name = "TPUStrategy", .common = std::move(options)};
  std::string& kind = setup.common.device_kind;
  if (kind != "cpu" && kind != "tpu" && kind != "pjrt") {
    return InvalidArgument(setup.name + ": expected devices of the kind tpu or pjrt, got: " + kind);
  }
  // Who names the kind has a plugin, and that drives this host's own devices.
  TpuClusterResolver asked = resolver;
  if (kind != "cpu" && asked.tpu.empty()) asked.tpu = "local";
  MT_ASSIGN_OR_RETURN(const TpuCluster tpu, ResolveTpu(asked, environment));
  if (!tpu.local || tpu.hosts.size() > 1) {
    return Unimplemented(
        setup.name + " on " + tpu.ToString() +
        ": expected the chips of this host alone, which a PJRT plugin (libtpu.so) "
        "drives, got: " +
        (tpu.local ? std::to_string(tpu.hosts.size()) + " hosts" : "a server at " + tpu.hosts[0]));
  }
  if (kind == "cpu") kind = "pjrt";
  setup.devices = resolver.chips > 0 ? resolver.chips : tpu.chips_per_host;
  if (setup.devices == 0) {
    MT_ASSIGN_OR_RETURN(setup.devices, DevicesFound(kind));
  }
  return ReplicaStrategy::Make(std::move(setup));
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
