// Strategies: which devices train, and how their replicas stay alike. Two ways over one set of
// variables:
//
//   a custom loop    MT_ASSIGN_OR_RETURN(auto strategy, Strategy::Mirrored({.count = 2}));
//                    auto scope = strategy->Scope();
//                    ReplicaFunction step("step", [&](Value x, Value y) -> Value {
//                      ... optimizer->Apply(...); ...
//                    });
//                    MT_ASSIGN_OR_RETURN(auto losses, strategy->Run(step, batch));
//                    MT_ASSIGN_OR_RETURN(auto loss, strategy->Reduce(ReduceOp::kSum, losses[0]));
//   Model (model.h)  Compile, Fit, Evaluate, Predict: one program over the whole batch, on the mesh
//                    `batch` = replicas; with parameter servers, on the workers
//
// In a custom loop each replica runs the function on its share of the batch, with copies of the
// variables; gradients are summed over all replicas where an optimizer applies them.
// docs/strategies.md says what each strategy is. One thread uses a strategy; with several processes
// each has its own and calls the same in the same order.
#pragma once

#include <cstdint>
#include <functional>
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

namespace meshtrain::data {
class Pipeline;
}
namespace meshtrain::parameter {
class Coordinator;
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
class RemoteVariables;
class Strategy;
struct ParameterServerOptions;  // parameter_server.h

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
  // One replica on this process's CPU.
  static Result<std::unique_ptr<Strategy>> Default(StrategyOptions options = {});
  // "cpu:0". Errors (here and below): kInvalidArgument for a device that is none or is named twice,
  // kUnimplemented for one that this build cannot use.
  static Result<std::unique_ptr<Strategy>> OneDevice(std::string_view device,
                                                     StrategyOptions options = {});
  static Result<std::unique_ptr<Strategy>> Mirrored(MirroredOptions options = {});
  // One copy of each variable, on the host; the other devices get it before each step.
  static Result<std::unique_ptr<Strategy>> CentralStorage(CentralStorageOptions options = {});
  static Result<std::unique_ptr<Strategy>> MultiWorkerMirrored(MultiWorkerOptions options = {});
  // The chief's, whose variables lie on servers (parameter_server.h); waits for the servers.
  // Errors: Coordinator::Create's.
  static Result<std::unique_ptr<Strategy>> ParameterServer(ParameterServerOptions options,
                                                           std::stop_token stop = {});
  // Finds the TPU (tpu.h). Errors: ResolveTpu's; kUnimplemented saying what is missing, until there
  // is a backend for it.
  static Result<std::unique_ptr<Strategy>> Tpu(const TpuClusterResolver& resolver = {},
                                               StrategyOptions options = {});
  // `environment`: the value of a variable, nothing where it is not set (membership::Environment).
  static Result<std::unique_ptr<Strategy>> Tpu(
      const TpuClusterResolver& resolver, StrategyOptions options,
      const std::function<std::optional<std::string>(std::string_view name)>& environment);
  ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  std::string_view name() const;  // "MirroredStrategy"
  int64_t num_replicas_in_sync() const;
  int64_t local_replicas()
      const;  // of this process, [first_replica, first_replica + local_replicas)
  int64_t first_replica() const;
  int process() const;
  bool chief() const { return process() == 0; }
  [[nodiscard]] StrategyScope Scope() { return StrategyScope(*this); }

  // --- custom loops. With parameter servers all of it is kUnimplemented but Read, Assign, Save and
  // Restore.
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
  // each element counts once). Errors: kInvalidArgument for values of different types, a mean of
  // integers.
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

  // --- variables: those made under the scope
  Result<mesh::Tensor> Read(const program::Variable& variable);
  Status Assign(const program::Variable& variable, const mesh::Tensor& value);
  // It is saved and restored no more, until it is used again: for the slots of an optimizer that is
  // done.
  void Retire(const program::Variable& variable);
  // Every copy takes the first one's value: after a Run that failed, where Restore is not wanted.
  Status Equalize();
  // Saves `variables`, without them every one that has a value, by their paths: any strategy, and
  // none, can go on from it. The chief writes; the checkpoint's folder, "" in other processes.
  // Errors: kFailedPrecondition for two variables of one path; the disk's.
  Result<std::string> Save(const std::string& folder, int64_t step,
                           std::span<const program::Variable> variables = {});
  // Loads the newest whole checkpoint in `folder`, which every process reads, for the variables
  // there are and those that come to be; its step. Errors: kNotFound where there is none,
  // kInvalidArgument naming a variable of another type, kDataLoss. With parameter servers every
  // variable and slot is saved, by the servers, which must reach the folder.
  Result<int64_t> Restore(const std::string& folder);
  // Of parameter servers: schedules steps, says who is there, ends the job. Null elsewhere.
  parameter::Coordinator* coordinator();

  // --- programs over the whole batch (Model)
  const mesh::Mesh& mesh() const;  // one axis, `batch`, of all replicas
  Result<execute::Session*> session();
  // Makes the variables' values lie on mesh(), in the session.
  Status PrepareOnMesh(std::span<const program::Variable> variables);
  const Packing& packing() const;
  // Team::AgreeOnPlans, where there is a team; each process calls it alike.
  Status AgreeOnPlans(std::span<const uint64_t> hashes);

  // For tests and reports: the plan that a replica of this process ran last for `function`; null
  // before.
  const plan::Plan* last_plan(const ReplicaFunction& function, int64_t replica = 0) const;

  // For the trainer: the variables that lie on parameter servers; null under any other strategy.
  RemoteVariables* remote();

 private:
  friend class StrategyScope;
  struct Setup;
  struct Impl;
  explicit Strategy(std::unique_ptr<Impl> impl);
  static Result<std::unique_ptr<Strategy>> Make(Setup setup);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::strategy
