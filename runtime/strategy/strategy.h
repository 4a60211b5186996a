// Strategies: which devices train, and how what they compute stays alike.
//
//   a custom loop    MT_ASSIGN_OR_RETURN(auto strategy, Strategy::Mirrored({.count = 2}));
//                    auto scope = strategy->Scope();
//                    ReplicaFunction step("step", [&](Value x, Value y) -> Value {
//                      ... optimizer->Apply(...); ...
//                    });
//                    MT_ASSIGN_OR_RETURN(auto losses, strategy->Run(step, batch));
//                    MT_ASSIGN_OR_RETURN(auto loss, strategy->Reduce(ReduceOp::kSum, losses[0]));
//   Model (model.h)  Compile, Fit, Evaluate, Predict: one program over the whole batch, on the
//                    strategy's mesh; with parameter servers, on the workers
//
// Each kind of strategy is a class that has what it can do and nothing else:
//
//   Strategy            its name, its scope, and the variables that were made under it
//     MeshStrategy      a mesh, in one process or in several, and a session on it (Strategy::Mesh)
//       ReplicaStrategy its devices are replicas too, which run functions each for itself
//     ServerStrategy    variables lie on parameter servers (server_strategy.h)
//
// A training job makes the same objects of its manifest. docs/strategies.md says what each strategy
// is. One thread uses a strategy; with several processes each has its own and calls the same in the
// same order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/nn/parameter.h"
#include "runtime/strategy/options.h"

namespace meshtrain::checkpoint {
class Checkpoint;
}
namespace meshtrain::data {
class Pipeline;
}
namespace meshtrain::plan {
struct Plan;
}

namespace meshtrain::strategy {

// Of custom loops: runtime/replicas.h has all of them.
class DistributedDataset;
class ReplicaFunction;
struct PerReplica;
struct PerReplicaBatch;
enum class ReduceOp : uint8_t;
class MeshStrategy;
class ReplicaStrategy;
class ServerStrategy;  // server_strategy.h
class Strategy;
struct ParameterServerOptions;  // server_strategy.h

// While it lives, its strategy is this thread's: GetStrategy gives it, and it holds the parameters
// that are made. Of nested scopes the innermost counts.
class StrategyScope {
 public:
  explicit StrategyScope(Strategy& strategy);
  ~StrategyScope();
  StrategyScope(const StrategyScope&) = delete;
  StrategyScope& operator=(const StrategyScope&) = delete;

 private:
  nn::ParameterScope parameters_;
  Strategy* previous_;
};

// This thread's strategy: the innermost scope's, else its own Default.
Strategy& GetStrategy();
bool HasStrategy();  // in a scope

class Strategy {
 public:
  // A mesh of any shape, over which variables and batches are split by layouts. Errors: of a mesh
  // whose devices lie in processes that no team joins.
  static Result<std::unique_ptr<MeshStrategy>> Mesh(MeshOptions options);
  // One replica on this process's CPU.
  static Result<std::unique_ptr<ReplicaStrategy>> Default(StrategyOptions options = {});
  // "cpu:0". Errors (here and below): kInvalidArgument for a device that is none or is named twice,
  // kUnimplemented for one that this build cannot use.
  static Result<std::unique_ptr<ReplicaStrategy>> OneDevice(std::string_view device,
                                                            StrategyOptions options = {});
  static Result<std::unique_ptr<ReplicaStrategy>> Mirrored(MirroredOptions options = {});
  // One copy of each variable, on the host; the other devices get it before each step.
  static Result<std::unique_ptr<ReplicaStrategy>> CentralStorage(
      CentralStorageOptions options = {});
  static Result<std::unique_ptr<ReplicaStrategy>> MultiWorkerMirrored(
      MultiWorkerOptions options = {});
  // The chief's, whose variables lie on servers; waits for the servers. Errors:
  // Coordinator::Create's.
  static Result<std::unique_ptr<ServerStrategy>> ParameterServer(ParameterServerOptions options,
                                                                 std::stop_token stop = {});
  // Finds the TPU (tpu.h), whose chips on this host a PJRT plugin drives; the kind of devices is
  // pjrt, whether the options say so or nothing. Errors: ResolveTpu's; kUnimplemented for chips of
  // other hosts; where nobody says how many chips there are, device::MakeBackend's.
  static Result<std::unique_ptr<ReplicaStrategy>> Tpu(const TpuClusterResolver& resolver = {},
                                                      StrategyOptions options = {});
  // `environment`: the value of a variable, nothing where it is not set (membership::Environment).
  static Result<std::unique_ptr<ReplicaStrategy>> Tpu(
      const TpuClusterResolver& resolver, StrategyOptions options,
      const std::function<std::optional<std::string>(std::string_view name)>& environment);
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  const std::string& name() const { return name_; }  // "MirroredStrategy"
  // Into how many parts a batch goes; 1 with parameter servers, whose steps take whole batches.
  int64_t num_replicas_in_sync() const { return replicas_; }
  int process() const { return process_; }
  bool chief() const { return process_ == 0; }
  [[nodiscard]] StrategyScope Scope() { return StrategyScope(*this); }

  // --- variables: those made under the scope
  virtual Result<mesh::Tensor> Read(const program::Variable& variable) = 0;
  virtual Status Assign(const program::Variable& variable, const mesh::Tensor& value) = 0;

  // --- checkpoints
  // Saves `variables`, without them every one that has a value and is still held by a layer, an
  // optimizer or as a Parameter, by their paths: any strategy, and none, can go on from it. The
  // checkpoint's folder, "" in other processes than the chief. With parameter servers every
  // variable and slot is saved, by the servers, which must reach the folder. Errors:
  // kFailedPrecondition for two variables of one path; the disk's.
  virtual Result<std::string> Save(const std::string& folder, int64_t step,
                                   std::span<const program::Variable> variables = {}) = 0;
  // Loads the newest whole checkpoint in `folder`, which every process reads, for the variables
  // there are, of whatever model (Model::Restore: one model's only); what none of them takes is
  // for the first variable of that path that comes to be. Its step. Errors: kNotFound where there
  // is none, kInvalidArgument naming a variable of another type, kDataLoss.
  Result<int64_t> Restore(const std::string& folder);

 protected:
  Strategy(std::string name, int process, int64_t replicas)
      : name_(std::move(name)), process_(process), replicas_(replicas) {}

 private:
  friend class StrategyScope;
  // A parameter was made under the scope.
  virtual void Hold(const nn::Parameter& parameter) = 0;
  // The values of a checkpoint, for variables there are and those that come to be. Errors:
  // Restore's; kDataLoss with nothing changed.
  virtual Status Give(std::unique_ptr<checkpoint::Checkpoint> from) = 0;

  const std::string name_;
  const int process_;
  const int64_t replicas_;
};

class MeshStrategy : public Strategy {
 public:
  ~MeshStrategy() override;

  // Of a ReplicaStrategy: one axis, `batch`, of all replicas; without one where there is one.
  const mesh::Mesh& mesh() const;
  // The axis of mesh() that batches are split over; "": none, every device has all of a batch.
  const std::string& batch_axis() const;
  // Rules for the weights that have no layout of their own.
  const nn::LayoutMap& layouts() const;
  const Packing& packing() const;
  // The processes of the mesh; null where there is one, or where they are joined by other means.
  membership::Team* team() const;
  // Of mesh(), made when first asked for. Errors: Session::Create's.
  Result<execute::Session*> session();
  using Layouts = std::map<std::string, mesh::Layout>;  // by name
  // Makes the values of `states` lie on mesh(), in the session, those that had none beginning with
  // their first one: in the layout that `layouts` has for its name; else of a MeshStrategy in its
  // own or its rule's, of a ReplicaStrategy a copy on every device. One that has lain there lies as
  // it did.
  Status PutOnMesh(std::span<const program::Variable> states, const Layouts& layouts = {});
  // The same of states that no scope need hold, with zeros in the place of any value: for who gives
  // them their first ones.
  Status DeclareOnMesh(std::span<const nn::Parameter> states, const Layouts& layouts);
  // It is saved and restored no more, until it is used again: for the slots of an optimizer that is
  // done.
  void Retire(const program::Variable& variable);

  Result<mesh::Tensor> Read(const program::Variable& variable) override;
  Status Assign(const program::Variable& variable, const mesh::Tensor& value) override;
  Result<std::string> Save(const std::string& folder, int64_t step,
                           std::span<const program::Variable> variables = {}) override;

 protected:
  struct Impl;
  friend class Strategy;
  MeshStrategy(std::string name, int process, int64_t replicas, std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  Status Give(std::unique_ptr<checkpoint::Checkpoint> from) override;

 private:
  void Hold(const nn::Parameter& parameter) override;
};

// In a custom loop each replica runs a function on its share of the batch, with copies of the
// variables; gradients are summed over all replicas where an optimizer applies them.
class ReplicaStrategy final : public MeshStrategy {
 public:
  ~ReplicaStrategy() override;

  // Of this process: [first_replica, first_replica + local_replicas).
  int64_t local_replicas() const;
  int64_t first_replica() const;

  // Runs `function` on every replica, each on its part of `batch`; one PerReplica for each output.
  // With a team the processes compare, before they first run a function in an incarnation, what it
  // would move between them. Errors: the trace's first, with its line; kInvalidArgument naming two
  // processes that would move different things; kAborted where a loss or a gradient is not finite
  // on any replica: no variable is changed then, and the loop may go on; of a replica that failed,
  // with its name, after which the copies of the variables may differ: then kFailedPrecondition
  // until Restore or Equalize.
  Result<std::vector<PerReplica>> Run(const ReplicaFunction& function,
                                      const PerReplicaBatch& batch);
  Result<std::vector<PerReplica>> Run(const ReplicaFunction& function);  // of no input
  // Values of the replicas' own, no batch: values[component], each with one tensor per replica of
  // this process.
  Result<std::vector<PerReplica>> Run(const ReplicaFunction& function,
                                      std::span<const PerReplica> values);
  // Over the replicas of all processes. With `axis` also over that dimension of each value (kMean:
  // each element counts once). Floats are added and divided in f64 and rounded once. Errors:
  // kInvalidArgument for values of different types, a mean of integers.
  Result<mesh::Tensor> Reduce(ReduceOp op, const PerReplica& value,
                              std::optional<int64_t> axis = {});
  std::vector<mesh::Tensor> LocalResults(const PerReplica& value) const;
  // The copies of this process; one where there is one copy only.
  Result<std::vector<mesh::Tensor>> LocalResults(const program::Variable& variable);

  // Global batches, divided among the replicas (values.h). Every process reads the whole batch and
  // keeps its part.
  Result<DistributedDataset> DistributeDataset(std::unique_ptr<data::Pipeline> pipeline);
  // A dataset of arrays that share their first dimension, in global batches of `batch_size`.
  Result<DistributedDataset> DistributeArrays(std::vector<mesh::Tensor> arrays, int64_t batch_size);
  // A batch that is at hand already.
  Result<PerReplicaBatch> DistributeBatch(std::span<const mesh::Tensor> components) const;

  // Every copy takes the first one's value: after a Run that failed, where Restore is not wanted.
  Status Equalize();

  // For tests and reports: the plan that a replica of this process ran last for `function`; null
  // before.
  const plan::Plan* last_plan(const ReplicaFunction& function, int64_t replica = 0) const;

 private:
  friend class Strategy;
  struct Own;
  struct OwnSetup;
  static Result<std::unique_ptr<ReplicaStrategy>> Make(OwnSetup setup);
  ReplicaStrategy(std::unique_ptr<Impl> impl, std::unique_ptr<Own> own);
  Status Give(std::unique_ptr<checkpoint::Checkpoint> from) override;
  std::unique_ptr<Own> own_;
};

}  // namespace meshtrain::strategy
