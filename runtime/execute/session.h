// Runs plans. A Session owns the backend and the values of the variables; a LoadedStep
// (loaded_step.h) is one program, planned for a mesh and ready to run again and again over those
// variables.
//
// Where the devices of one process share memory (device::Traits), a plan for them is made on the
// collapsed mesh (sharding::CollapseLocal): neighbouring shards are computed by one call, a
// replicated value is one buffer, and a reduction accumulates in place. Where they do not, every
// device has its own buffers and every collective runs. Layouts, checks, errors and the printed
// plan are those of the user's mesh in both.
//
// Many processes: each has a session of its own for its devices of one mesh and runs the same
// program. What moves bytes between them (a step, Relayout, Pack, and ToHost, Unpack or Fetch of a
// value whose shards lie in several processes) is called by every process, in the same order. An
// error of such a call (kUnavailable, kDeadlineExceeded) leaves the variables as they may be: give
// them values again before going on.
//
// One thread uses a session. A Session outlives what it made.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/tensor.h"
#include "runtime/plan/options.h"
#include "runtime/program/builder.h"

namespace meshtrain {
struct MemoryLimit;
}
namespace meshtrain::collective {
class Communicator;
}
namespace meshtrain::device {
class Backend;
class Buffer;
}  // namespace meshtrain::device
namespace meshtrain::plan {
struct Plan;
}
namespace meshtrain::sharding {
struct Given;
}

namespace meshtrain::execute {

class LoadedStep;  // loaded_step.h
class Session;

using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using mesh::TensorType;

// A tensor that lies on a mesh. Copies share the bytes; nothing writes to a DTensor after it was
// made, except that a variable's value changes when a step assigns it (DVariable::Read gives a copy
// of its own).
class DTensor {
 public:
  DTensor() = default;
  bool valid() const { return !buffers_.empty(); }
  const TensorType& type() const { return type_; }
  const mesh::Dims& dims() const { return type_.dims; }
  const Layout& layout() const { return layout_; }
  // The whole tensor on the host: Session::ToHost of the session that made it.
  Result<Tensor> Whole() const;

 private:
  friend class Session;
  friend class LoadedStep;
  Session* session_ = nullptr;
  TensorType type_;
  Layout layout_;                                         // on the user's mesh
  Layout run_layout_;                                     // on the mesh that runs
  std::vector<std::shared_ptr<device::Buffer>> buffers_;  // per local place of the mesh that runs
};

// Makes the communicator of a plan on a mesh; `plan_hash` is the plan's.
using MakeCommunicator = std::function<Result<std::unique_ptr<collective::Communicator>>(
    const Mesh& mesh, uint64_t plan_hash)>;

struct SessionOptions {
  std::string device_kind = "cpu";  // a row of device::Kinds()
  int devices = 0;                // of this process, where their number must be known at the start
  bool isolated = false;          // CPU devices with memory of their own
  int threads = 0;                // 0: one per core
  int process = 0;                // whose devices of a mesh this session computes
  MakeCommunicator communicator;  // for meshes of several processes
  MakeCommunicator
      local_communicator;  // for meshes of several devices of this process; none: the backend's own
  // Bytes that variables and steps may take here; 0: as much as UsableMemory() allows. A step that
  // needs more is refused before its memory is taken.
  int64_t memory = 0;
  // A step in which a loss or a gradient that its program watches (program::Program::watched) is
  // not finite on any device of any process changes no variable: LoadedStep::Run is kAborted then,
  // in every process.
  bool guard_updates = true;
  // What sharding::Options says of these.
  int64_t replication_limit_bytes = int64_t{64} << 20;
  bool refuse_uneven = false;
  plan::Options plan;
};

class Session {
 public:
  // On devices of the options' kind, or on a backend that was made (then the options' kind, devices
  // and isolated say nothing). Errors: device::MakeBackend's.
  static Result<std::unique_ptr<Session>> Create(SessionOptions options = {});
  static Result<std::unique_ptr<Session>> Create(SessionOptions options,
                                                 std::unique_ptr<device::Backend> backend);
  ~Session();
  Session(const Session&) = delete;

  const SessionOptions& options() const { return options_; }
  // Devices that there are for this process; 0: as many as a mesh asks for.
  int devices_there() const;

  // --- tensors. One of another session is kInvalidArgument.
  // A host tensor laid out on the layout's mesh (DTensor's copy_to_mesh). Errors: kInvalidArgument
  // for a layout of another rank, with a pending reduction, or on a mesh without devices of this
  // process; kUnimplemented (sharding::CollapseLocal); kFailedPrecondition (no memory).
  Result<DTensor> CopyToMesh(const Tensor& value, const Layout& layout);
  // One component per device of this process, in the order of their ranks, each the valid extent of
  // its shard; copies must agree in shape. `dims`: of the whole. Without them the whole is what the
  // shards come to, for which the processes of a mesh tell each other what they have, so that what
  // does not fit in one is an error in all. Shards that a process runs with and another one packs
  // are exchanged, by way of the whole: those of {model+batch} where the processes are along batch,
  // and unequal ones that end elsewhere than the processes' own. Errors: kInvalidArgument naming
  // the device whose component does not fit; kFailedPrecondition (to be told or exchanged, in a
  // session that is joined to none).
  Result<DTensor> Pack(std::span<const Tensor> components, const Layout& layout,
                       const std::optional<mesh::Dims>& dims = {});
  // The components of this process's devices.
  Result<std::vector<Tensor>> Unpack(const DTensor& value);
  // The whole tensor on the host.
  Result<Tensor> ToHost(const DTensor& value);
  // The same values in another layout of the same mesh.
  Result<DTensor> Relayout(const DTensor& value, const Layout& layout);

  // --- variables. One without a value in this session is kFailedPrecondition everywhere but in
  // Declare, IsDeclared and Forget.
  // Gives `variable` a zero-filled value in `layout`. Errors: kAlreadyExists, and CopyToMesh's.
  Status Declare(const program::Variable& variable, const Layout& layout);
  bool IsDeclared(const program::Variable& variable) const {
    return variables_.contains(variable.key());
  }
  Status Forget(const program::Variable& variable);
  // Who else keeps values of variables, as a strategy does those made under its scope, brings them
  // here before a Function uses them: called with all that it uses, before each call, whose error
  // its own is. What it knows nothing of it leaves alone.
  using BringVariables = std::function<Status(std::span<const program::Variable>)>;
  void set_bring_variables(BringVariables bring) { bring_ = std::move(bring); }
  Result<Layout> LayoutOf(const program::Variable& variable) const;
  // The value now, in bytes of its own.
  Result<DTensor> Read(const program::Variable& variable);
  Result<Tensor> ReadToHost(const program::Variable& variable);
  // How the value lies in memory: the variable's layout on the mesh that runs, and the valid extent
  // of what device `rank` of that mesh, one of this process, holds. For saving: no byte moves
  // between devices.
  Result<Layout> StoredLayoutOf(const program::Variable& variable) const;
  Result<Tensor> ReadStored(const program::Variable& variable, int64_t rank);
  // Gives `use` the bytes that ReadStored would return, without a copy where they lie as they are.
  Status UseStored(const program::Variable& variable, int64_t rank,
                   const std::function<void(std::span<const std::byte>)>& use);
  Status WriteStored(const program::Variable& variable, int64_t rank, const Tensor& value);
  Status Write(const program::Variable& variable, const Tensor& value);
  Status Write(const program::Variable& variable, const DTensor& value);

  // --- steps
  // Shards, plans and compiles `program`. `variables` are those of its states, in their order, all
  // declared. Its memory is counted before it is taken. `layouts` gives inputs and outputs; states
  // have the layouts they were declared with. `bucket_bytes`: instead of the options', for this
  // program's all-reduces. Errors: kInvalidArgument (variables of another number or on another
  // mesh, and what Propagate and Partition refuse), kFailedPrecondition (a variable without a
  // value; a mesh that spans processes in a session that is joined to none; more bytes than
  // SessionOptions::memory, with what needs them), kUnimplemented.
  Result<std::unique_ptr<LoadedStep>> Load(const program::Program& program, const Mesh& mesh,
                                           std::span<const program::Variable> variables,
                                           sharding::Given layouts,
                                           std::optional<int64_t> bucket_bytes = {});
  // A program that was traced for one replica of several: it runs as it is, over the values of this
  // session's one device, and what it moves between replicas are the collectives that it holds
  // (axes by index into `mesh`, which has a device of a process of its own for each replica).
  // `variables` as Load has them, all replicated. Programs of different replicas may differ in
  // dimensions, so the communicator gets the hash of their collectives alone.
  Result<std::unique_ptr<LoadedStep>> LoadReplica(const program::Program& program, const Mesh& mesh,
                                                  std::span<const program::Variable> variables,
                                                  std::optional<int64_t> bucket_bytes = {});
  // The plan alone, for a report: nothing is compiled or allocated.
  Result<plan::Plan> PlanOnly(const program::Program& program, const Mesh& mesh,
                              const sharding::Given& layouts,
                              std::optional<int64_t> bucket_bytes = {}) const;

 private:
  friend class LoadedStep;
  friend class Function;
  struct Stored {
    program::Variable variable;
    DTensor value;
  };

  Session(SessionOptions options, std::unique_ptr<device::Backend> backend);
  Result<Mesh> RunMesh(const Mesh& mesh) const;
  int DeviceAt(const Mesh& mesh, int64_t rank) const;  // for Backend::Allocate
  std::vector<int64_t> LocalRanks(const Mesh& mesh) const {
    return mesh.LocalRanks(options_.process);
  }
  Result<DTensor> Make(const TensorType& type, const Layout& layout);  // zero-filled
  // What each device of the mesh has, by rank; `own`: one row after the other of ours.
  Result<std::vector<std::byte>> GatherRows(const Layout& layout, mesh::DType dtype,
                                            std::span<const std::byte> own);
  // The components of all processes by rank, of which this one tells its own, or with `own` that it
  // has none that fit.
  Result<std::map<int64_t, TensorType>> TellComponents(std::span<const Tensor> components,
                                                       const Layout& layout, const Status& own);
  Result<Tensor> JoinComponents(std::span<const Tensor> components, const TensorType& type,
                                const Layout& layout);
  Result<DTensor> Clone(const DTensor& value);
  Status CheckMade(const DTensor& value) const;         // that this session made it
  Status Copy(const DTensor& from, const DTensor& to);  // of one layout
  Status Fill(const DTensor& to, const Tensor& from);
  // `piece(slice)` gives the values of each local shard's valid extent.
  Status FillShards(const DTensor& to, const std::function<Tensor(const Layout::Slice&)>& piece);
  Result<size_t> LocalIndex(const program::Variable& variable, const DTensor& value,
                            int64_t rank) const;
  Result<Tensor> ShardAt(const DTensor& value,
                         size_t i) const;  // the valid extent of local shard i
  // Each process holds all of it. The answer is the same in every process: where a dimension is
  // shorter than its axis, one may hold all and another nothing, and both must gather.
  static bool IsWholeEverywhere(const DTensor& value);
  // The variables behind the program's states, which must lie on `mesh`.
  Result<std::vector<Stored*>> StatesOf(const program::Program& program, const Mesh& mesh,
                                        std::span<const program::Variable> variables);
  // Counts the step, anew if it was before: what its plan says, and once it is compiled what that
  // added. Errors: kFailedPrecondition where it does not fit beside what the session holds.
  Status CountMemory(LoadedStep& step, size_t places);
  // Compiles a step that is planned, and gives it its buffers.
  Status Finish(LoadedStep& step, std::span<Stored* const> states, uint64_t communicator_hash);
  Result<Tensor> Gather(const DTensor& value);
  Result<Stored*> Find(const program::Variable& variable);

  Status Bring(std::span<const program::Variable> variables) const {
    return bring_ ? bring_(variables) : OkStatus();
  }

  SessionOptions options_;
  std::unique_ptr<device::Backend> backend_;
  BringVariables bring_;
  std::map<const void*, Stored> variables_;
  const std::unique_ptr<const MemoryLimit> limit_;
  // What all loaded steps take here.
  struct StepsMemory {
    int64_t kept = 0;  // of each its own: inputs, outputs; arena and scratch where none are shared
    std::multiset<int64_t> shared;  // arena and scratch of each, where the largest serves all
    int64_t bytes() const { return kept + (shared.empty() ? 0 : *shared.rbegin()); }
  };
  std::shared_ptr<StepsMemory> steps_memory_ = std::make_shared<StepsMemory>();
};

}  // namespace meshtrain::execute
