// What makers of strategies take. The words are tf.distribute's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/mesh.h"
#include "runtime/nn/layout_map.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::membership {
class Team;
}

namespace meshtrain::strategy {

// How the replicas of one process sum their gradients. They share memory here, so each choice is
// about the order of additions and who makes them; kAuto is one pass over all copies and the
// fastest.
enum class CrossDeviceOps : uint8_t {
  kAuto,
  kNccl,                  // needs GPUs; without them a warning, and kAuto
  kHierarchicalCopy,      // pairs, then pairs of pairs
  kReductionToOneDevice,  // all onto the first device, and back
  kRing,                  // chunk by chunk around
};

// How gradients go together.
using Packing = train::Packing;

struct StrategyOptions {
  // Of initial values; none: nn::RandomSeed() when a variable gets its first one.
  std::optional<int64_t> seed;
  int threads = 0;                               // of this process; 0: one per core
  Duration deadline = std::chrono::seconds(60);  // how long a replica waits for another one
  // As execute::SessionOptions, of steps over the mesh. The kind is of replicas too; where devices
  // are named, it is theirs.
  bool isolated = false;
  int64_t memory = 0;
  std::string device_kind = "cpu";
};

struct MeshOptions {
  mesh::Mesh mesh;
  // The axis that batches are split over, where the mesh has it; "": none.
  std::string batch_axis = "batch";
  nn::LayoutMap layouts;  // of weights without a layout of their own
  // The processes of the mesh, joined; null: it lies in one process.
  std::shared_ptr<membership::Team> team;
  Packing packing;
  StrategyOptions common;
};

struct MirroredOptions {
  std::vector<std::string> devices;  // "cpu:0", "cpu:1"; none: `count` of common.device_kind
  int64_t count = 0;                 // 0: those that are found, which without GPUs is one CPU
  CrossDeviceOps cross_device_ops = CrossDeviceOps::kAuto;
  Packing packing;
  StrategyOptions common;
};

struct CentralStorageOptions {
  std::vector<std::string> compute_devices;  // none: `count` of common.device_kind
  int64_t count = 0;
  StrategyOptions common;
};

// How processes sum their gradients: within a host always over shared memory, between hosts over
// TCP. There kAuto takes doubling, halving or a ring, as is fastest for so many bytes; kRing the
// ring for all; kNccl without GPUs is a warning, and kRing. Of a team: what a `communicator` joins
// sums in its own way.
enum class Communication : uint8_t { kAuto, kRing, kNccl };

struct MultiWorkerOptions {
  // The processes: those of a team that has joined, or whatever `communicator` joins. Neither: one
  // process.
  std::shared_ptr<membership::Team> team;
  int process = 0;
  int processes = 1;
  execute::MakeCommunicator communicator;
  int64_t devices_per_worker = 1;
  Communication communication = Communication::kAuto;
  Packing packing;
  StrategyOptions common;
};

// tf.distribute's TPUClusterResolver: which TPU. tpu.h says what each form means.
struct TpuClusterResolver {
  std::string tpu;  // "local": this host's; "HOST:PORT" or "grpc://HOST:PORT", several with commas;
                    // "": the environment's, or this host's where the kind of devices is pjrt
  int64_t chips = 0;  // of this host, to use; 0: all
};

}  // namespace meshtrain::strategy
