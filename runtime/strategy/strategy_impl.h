// What the strategies over a mesh are made of; of this folder only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/execute/session.h"
#include "runtime/membership/team.h"
#include "runtime/mesh/mesh.h"
#include "runtime/nn/layout_map.h"
#include "runtime/strategy/replica_function.h"
#include "runtime/strategy/replicas.h"
#include "runtime/strategy/strategy.h"
#include "runtime/strategy/variables.h"

namespace meshtrain::strategy {

// kInvalidArgument for a packing that says two things, or less than nothing.
Status CheckPacking(const Packing& packing);

struct MeshStrategy::Impl {
  struct Setup {
    mesh::Mesh mesh;
    std::string batch_axis;
    nn::LayoutMap layouts;
    Packing packing;
    std::shared_ptr<membership::Team> team;
    execute::SessionOptions session;  // but for `plan`
    std::optional<int64_t> seed;
    // As Variables' own: of replicas, and of weights on the mesh.
    std::function<Result<Replicas*>()> replicas;
    std::function<Result<mesh::Layout>(const nn::Parameter&)> layout;
  };
  explicit Impl(Setup from);

  Result<execute::Session*> Session();

  Setup setup;
  std::unique_ptr<execute::Session> session;
  Variables variables;
};

struct ReplicaStrategy::OwnSetup {
  std::string name;
  int64_t devices = 1;       // of this process
  std::vector<int> indices;  // theirs, where they were named; empty: from 0 on
  int process = 0, processes = 1;
  bool central = false;
  // Its sums were described: each device has its own copies, and gradients go that way.
  bool described = false;
  CrossDeviceOps ops = CrossDeviceOps::kAuto;
  Packing packing;
  StrategyOptions common;
  execute::MakeCommunicator communicator;
  std::shared_ptr<membership::Team> team;

  int64_t replicas_in_sync() const { return devices * processes; }
  int64_t first() const { return devices * process; }
  // Of local device `d`, among those of its kind.
  int IndexOf(int64_t d) const {
    return indices.empty() ? static_cast<int>(d) : indices[static_cast<size_t>(d)];
  }
  int DevicesNeeded() const;  // how many of the kind there must be
  // The devices of these names, or `count` of the options' kind. Errors: Strategy::Mirrored's.
  Status UseDevices(const std::vector<std::string>& names, int64_t count);
  // Of all processes, one after the other.
  std::vector<mesh::Device> AllDevices() const;
};

struct ReplicaStrategy::Own {
  struct Traced {
    std::weak_ptr<const ReplicaFunction::Shape> function;
    TracedReplica replica;
  };
  using Key = std::pair<const ReplicaFunction::Shape*, std::string>;
  struct Agreed {
    std::weak_ptr<const ReplicaFunction::Shape> function;
    uint64_t incarnation = 0;
  };

  explicit Own(OwnSetup from) : setup(std::move(from)) {}
  // Makes them when they are first asked for: a Model alone has no use for them.
  Result<Replicas*> Get();
  Result<const TracedReplica*> Trace(ReplicaStrategy& self, const ReplicaFunction& function,
                                     std::span<const mesh::Tensor> inputs, int64_t global_size);
  void ForgetOld();
  // All processes are about to move the same for `function`, which runs `traced`.
  Status AgreeOn(const ReplicaFunction& function, std::span<const TracedReplica* const> traced);

  OwnSetup setup;
  std::unique_ptr<Replicas> replicas;
  std::map<Key, std::unique_ptr<Traced>> traced;
  std::map<const ReplicaFunction::Shape*, Agreed> agreed;
  // By function and replica.
  std::map<std::pair<const ReplicaFunction::Shape*, int64_t>, const TracedReplica*> last;
};

}  // namespace meshtrain::strategy
