#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/plan/plan.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/replica_context.h"
#include "runtime/strategy/strategy_impl.h"
#include "runtime/strategy/values.h"

namespace meshtrain::strategy {

using mesh::Tensor;
using program::Variable;

ReplicaStrategy::ReplicaStrategy(std::unique_ptr<Impl> impl, std::unique_ptr<Own> own)
    : MeshStrategy(own->setup.name, own->setup.process, own->setup.replicas_in_sync(),
                   std::move(impl)),
      own_(std::move(own)) {}
ReplicaStrategy::~ReplicaStrategy() = default;

int64_t ReplicaStrategy::local_replicas() const { return own_->setup.devices; }
int64_t ReplicaStrategy::first_replica() const { return own_->setup.first(); }

Result<Replicas*> ReplicaStrategy::Own::Get() {
  if (replicas != nullptr) return replicas.get();
  Replicas::Options options{.replicas = setup.replicas_in_sync(),
                            .first = setup.first(),
                            .count = setup.devices,
                            .threads = setup.common.threads,
                            .device_kind = setup.common.device_kind,
                            .indices = setup.indices,
                            .deadline = setup.common.deadline,
                            .communicator = setup.communicator};
  options.packing = setup.packing;
  MT_ASSIGN_OR_RETURN(options.process_mesh,
                      mesh::Mesh::Create({{"replica", options.replicas}}, setup.AllDevices()));
  options.local = [ops = setup.ops](const mesh::Mesh& mesh) {
    return MakeCrossDeviceCommunicator(mesh, ops);
  };
  MT_ASSIGN_OR_RETURN(replicas, Replicas::Create(std::move(options)));
  return replicas.get();
}

Status ReplicaStrategy::Own::AgreeOn(const ReplicaFunction& function,
                                     std::span<const TracedReplica* const> traced) {
  // Once per incarnation: who joins anew asks for it too.
  const uint64_t now = setup.team->incarnation();
  const auto known = agreed.find(&function.shape());
  if (known != agreed.end() && known->second.incarnation == now) return OkStatus();
  MT_ASSIGN_OR_RETURN(Replicas * all, Get());
  MT_RETURN_IF_ERROR(all->Load(traced));
  const execute::LoadedStep& step = *all->step(0, traced[0]);
  const auto& steps = step.run_plan().steps;
  // What moves nothing may be run by one process alone.
  if (std::any_of(steps.begin(), steps.end(),
                  [](const plan::Step& one) { return one.kind == plan::StepKind::kCollective; })) {
    const uint64_t hash = step.communicator_hash();
    MT_RETURN_IF_ERROR(setup.team->AgreeOnPlans({&hash, 1}, {}).At("run " + function.shape().name));
  }
  agreed.insert_or_assign(&function.shape(), Agreed{function.identity(), now});
  return OkStatus();
}

void ReplicaStrategy::Own::ForgetOld() {
  std::erase_if(agreed, [](const auto& item) { return item.second.function.expired(); });
  for (auto it = traced.begin(); it != traced.end();) {
    if (!it->second->function.expired()) {
      ++it;
      continue;
    }
    const TracedReplica* old = &it->second->replica;
    std::erase_if(last, [&](const auto& item) { return item.second == old; });
    replicas->Forget(old);
    it = traced.erase(it);
  }
}

Result<const TracedReplica*> ReplicaStrategy::Own::Trace(ReplicaStrategy& self,
                                                         const ReplicaFunction& function,
                                                         std::span<const Tensor> inputs,
                                                         int64_t global_size) {
  const ReplicaFunction::Shape& shape = function.shape();
  if (inputs.size() != shape.arity) {
    return InvalidArgument("run " + shape.name + ": it takes " + std::to_string(shape.arity) +
                           " values, got: " + std::to_string(inputs.size()));
  }
  std::string text = std::to_string(global_size);
  for (const Tensor& x : inputs) text += " " + x.type().ToString();
  const Key key{&shape, text};
  if (const auto known = traced.find(key); known != traced.end()) return &known->second->replica;

  program::Builder builder(shape.name);
  const program::Builder::Scope recording(builder);
  const StrategyScope scope(self);
  const TraceScope context(builder, setup.replicas_in_sync(), global_size);
  std::vector<Value> values;
  for (const Tensor& x : inputs) {
    values.push_back(builder.Input("input_" + std::to_string(values.size()), x.type()));
  }
  const Outputs outputs = shape.body(values);
  for (const auto& [name, value] : outputs) builder.Output(name, value);
  auto made = std::make_unique<Traced>();
  made->function = function.identity();
  made->replica.variables = builder.variables();
  made->replica.fed = inputs.size();
  MT_ASSIGN_OR_RETURN(made->replica.program, builder.Build());
  return &traced.emplace(key, std::move(made)).first->second->replica;
}

Result<std::vector<PerReplica>> ReplicaStrategy::Run(const ReplicaFunction& function) {
  return Run(function, PerReplicaBatch{});
}

Result<std::vector<PerReplica>> ReplicaStrategy::Run(const ReplicaFunction& function,
                                                     const PerReplicaBatch& given) {
  Own& s = *own_;
  MT_ASSIGN_OR_RETURN(Replicas * replicas, s.Get());
  if (replicas->torn()) {
    return FailedPrecondition(
        "run " + function.shape().name +
        ": the run before failed, and the replicas' variables may differ: expected Restore or "
        "Equalize before");
  }
  s.ForgetOld();
  PerReplicaBatch batch = given;
  if (batch.replicas.empty()) batch.replicas.resize(static_cast<size_t>(local_replicas()));
  if (static_cast<int64_t>(batch.replicas.size()) != local_replicas()) {
    return InvalidArgument("run " + function.shape().name + ": expected values for the " +
                           std::to_string(local_replicas()) +
                           " replicas of this process, got: for " +
                           std::to_string(batch.replicas.size()));
  }
  // Traced one after another: layers make their weights on the first call, and user code need not
  // be ready for threads.
  std::vector<const TracedReplica*> traced;
  std::vector<Variable> variables;
  for (size_t i = 0; i < batch.replicas.size(); ++i) {
    const auto one = s.Trace(*this, function, batch.replicas[i], batch.global_size);
    if (!one.ok()) {
      return one.status().At("replica " +
                             std::to_string(first_replica() + static_cast<int64_t>(i)));
    }
    traced.push_back(*one);
    const TracedReplica& t = **one;
    if (t.program.outputs.size() != traced[0]->program.outputs.size()) {
      return InvalidArgument("run " + function.shape().name +
                             ": expected as many outputs on each replica, got: " +
                             std::to_string(traced[0]->program.outputs.size()) + " and " +
                             std::to_string(t.program.outputs.size()));
    }
    for (const Variable& v : t.variables) {
      if (std::find(variables.begin(), variables.end(), v) == variables.end()) {
        variables.push_back(v);
      }
    }
  }
  MT_RETURN_IF_ERROR(impl_->variables.ToReplicas(variables).At("run " + function.shape().name));
  if (s.setup.central) MT_RETURN_IF_ERROR(impl_->variables.Equalize(variables));
  if (s.setup.team != nullptr && s.setup.processes > 1) {
    MT_RETURN_IF_ERROR(s.AgreeOn(function, traced));
  }
  MT_ASSIGN_OR_RETURN(std::vector<PerReplica> outputs, replicas->Run(traced, batch));
  for (size_t i = 0; i < traced.size(); ++i) {
    s.last[{&function.shape(), static_cast<int64_t>(i)}] = traced[i];
  }
  return outputs;
}

Result<std::vector<PerReplica>> ReplicaStrategy::Run(const ReplicaFunction& function,
                                                     std::span<const PerReplica> values) {
  PerReplicaBatch batch;
  batch.replicas.resize(static_cast<size_t>(local_replicas()));
  for (const PerReplica& component : values) {
    if (component.values.size() != batch.replicas.size()) {
      return InvalidArgument("run " + function.shape().name + ": expected values for the " +
                             std::to_string(local_replicas()) +
                             " replicas of this process, got: for " +
                             std::to_string(component.values.size()));
    }
    for (size_t i = 0; i < batch.replicas.size(); ++i) {
      batch.replicas[i].push_back(component.values[i]);
    }
  }
  return Run(function, batch);
}

const plan::Plan* ReplicaStrategy::last_plan(const ReplicaFunction& function,
                                             int64_t replica) const {
  const auto at = own_->last.find({&function.shape(), replica});
  if (at == own_->last.end()) return nullptr;
  const execute::LoadedStep* step = own_->replicas->step(replica, at->second);
  return step == nullptr ? nullptr : &step->plan();
}

Result<Tensor> ReplicaStrategy::Reduce(ReduceOp op, const PerReplica& value,
                                       std::optional<int64_t> axis) {
  MT_ASSIGN_OR_RETURN(Replicas * all, own_->Get());
  Replicas& replicas = *all;
  std::vector<Tensor> sums, counts;
  for (const Tensor& x : value.values) {
    if (!axis) break;
    if (x.type().dtype != value.values[0].type().dtype) return OfDifferentTypes(value.values[0], x);
    MT_ASSIGN_OR_RETURN(Tensor sum, SumAlong(x, *axis));
    sums.push_back(std::move(sum));
    const int64_t dim = *axis < 0 ? *axis + x.type().rank() : *axis;
    counts.push_back(Tensor::Scalar(x.dims()[static_cast<size_t>(dim)]));
  }
  MT_ASSIGN_OR_RETURN(Tensor reduced, replicas.Sum(axis ? sums : value.values));
  if (op == ReduceOp::kMean) {
    double count = static_cast<double>(num_replicas_in_sync());
    if (axis) {
      MT_ASSIGN_OR_RETURN(const Tensor elements, replicas.Sum(counts));
      count = elements.Item();
    }
    MT_ASSIGN_OR_RETURN(reduced, DivideBy(reduced, count));
  }
  return RoundedTo(value.values[0].type().dtype, reduced);
}

std::vector<Tensor> ReplicaStrategy::LocalResults(const PerReplica& value) const {
  return value.values;
}

Result<std::vector<Tensor>> ReplicaStrategy::LocalResults(const Variable& variable) {
  MT_ASSIGN_OR_RETURN(std::vector<Tensor> copies, impl_->variables.Copies(variable));
  if (own_->setup.central) copies.resize(1);
  return copies;
}

Result<DistributedDataset> ReplicaStrategy::DistributeDataset(
    std::unique_ptr<data::Pipeline> pipeline) {
  if (pipeline == nullptr) return InvalidArgument("distribute: expected a pipeline, got: none");
  return DistributedDataset(std::move(pipeline), num_replicas_in_sync(), first_replica(),
                            local_replicas());
}

Result<DistributedDataset> ReplicaStrategy::DistributeArrays(std::vector<Tensor> arrays,
                                                             int64_t batch_size) {
  MT_ASSIGN_OR_RETURN(auto pipeline, ArraysPipeline(std::move(arrays), batch_size));
  return DistributeDataset(std::move(pipeline));
}

Result<PerReplicaBatch> ReplicaStrategy::DistributeBatch(std::span<const Tensor> components) const {
  return SplitBatch(components, num_replicas_in_sync(), first_replica(), local_replicas());
}

Status ReplicaStrategy::Equalize() {
  MT_RETURN_IF_ERROR(impl_->variables.Equalize());
  if (own_->replicas != nullptr) own_->replicas->Mend();
  return OkStatus();
}

Status ReplicaStrategy::Give(std::unique_ptr<checkpoint::Checkpoint> from) {
  MT_RETURN_IF_ERROR(MeshStrategy::Give(std::move(from)));
  if (own_->replicas != nullptr) own_->replicas->Mend();
  return OkStatus();
}

}  // namespace meshtrain::strategy
