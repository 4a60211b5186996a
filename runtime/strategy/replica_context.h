// What a function that runs on each replica may ask, and the losses that weigh right over replicas.
//
// Strategy::Run traces the function on a Builder of its own, on local shapes: a mean inside is over
// the replica's own examples. ReplicaContext::Current() is there while it is traced; everything it
// makes is recorded in that trace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string_view>

#include "runtime/nn/parameter.h"
#include "runtime/program/builder.h"
#include "runtime/strategy/values.h"

namespace meshtrain::strategy {

using program::Value;

class ReplicaContext {
 public:
  using Where = std::source_location;

  // This thread's; null where no replica's function is traced.
  static ReplicaContext* Current();

  int64_t num_replicas_in_sync() const { return replicas_; }
  // Examples of all replicas in the batch at hand; -1 where what Run got is no batch.
  int64_t global_batch_size() const { return global_batch_size_; }
  // i32[]: known when the step runs, since all replicas share a trace.
  Value replica_id_in_sync_group();

  // The sum or mean of the replicas' values, on every replica; differentiable.
  Value AllReduce(ReduceOp op, const Value& x, Where where = Where::current());
  // The replicas' values one after another along `axis`; they must be of one shape. Differentiable.
  Value AllGather(const Value& x, int64_t axis = 0, Where where = Where::current());

 private:
  friend class TraceScope;
  ReplicaContext(program::Builder& builder, int64_t replicas, int64_t global_batch_size)
      : builder_(builder), replicas_(replicas), global_batch_size_(global_batch_size) {}
  program::Builder& builder_;
  int64_t replicas_;
  int64_t global_batch_size_;
  Value replica_id_;
};

// The name of the input that holds a replica's number, in programs that ask for it.
inline constexpr std::string_view kReplicaIdInput = "replica_id_in_sync_group";

// Makes the context of a trace, and has optimizers sum their gradients over the replicas, while it
// lives.
class TraceScope {
 public:
  TraceScope(program::Builder& builder, int64_t replicas, int64_t global_batch_size);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  struct Gradients;
  ReplicaContext context_;
  ReplicaContext* previous_;
  std::unique_ptr<Gradients> gradients_;
};

struct AverageLossOptions {
  // Of per_example's shape, or one that broadcasts to it: [N] for [N], never [N, 1]. Else the
  // builder fails with kInvalidArgument.
  std::optional<Value> sample_weight = {};
  std::optional<int64_t> global_batch_size =
      {};  // none: the batch's that Run got; unknown there: own examples * replicas
};
// sum(per_example * sample_weight) / global batch size: summed over the replicas, the mean over the
// whole batch, whatever each replica's share of it is. tf.nn.compute_average_loss, but for the
// default, which there is the own examples times the number of replicas also where the shares
// differ. Outside of a replica's function the batch is the whole one.
Value ComputeAverageLoss(const Value& per_example, const AverageLossOptions& options = {});
// sum(loss) / replicas: every replica adds its part of what the weights cost.
Value ScaleRegularizationLoss(const Value& loss);
// What the regularizers of `parameters` add to a loss, unscaled; 0 where none has one. Records in
// the current builder. Errors (of the builder): kInvalidArgument for no parameters: a model has its
// weights after its first call, so call it first.
Value RegularizationLoss(std::span<const nn::Parameter> parameters);

}  // namespace meshtrain::strategy
