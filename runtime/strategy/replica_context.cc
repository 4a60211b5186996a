#include "runtime/strategy/replica_context.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/program/ops.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::strategy {
namespace {

using program::Builder;

// This thread's trace; set and restored by TraceScope only.
thread_local ReplicaContext* current_context = nullptr;

// The axis `replica` is the mesh's only one.
program::Attr ReplicaAxis() { return std::vector<int64_t>{0}; }

}  // namespace

ReplicaContext* ReplicaContext::Current() { return current_context; }

Value ReplicaContext::replica_id_in_sync_group() {
  if (!replica_id_.valid()) {
    replica_id_ = builder_.Input(std::string(kReplicaIdInput), {program::DType::kI32, {}});
  }
  return replica_id_;
}

Value ReplicaContext::AllReduce(ReduceOp op, const Value& x, Where where) {
  if (replicas_ == 1) return x;
  const program::Operand operand(x, where);
  const Value sum = builder_.Append1(
      "all_reduce", {operand},
      {{"axes", ReplicaAxis()}, {"group", replicas_}, {"reduction", std::string("sum")}}, &where);
  return op == ReduceOp::kSum
             ? sum
             : program::Div(sum, program::Operand(static_cast<double>(replicas_), where));
}

Value ReplicaContext::AllGather(const Value& x, int64_t axis, Where where) {
  const int64_t dim = axis < 0 ? axis + x.rank() : axis;
  if (dim < 0 || dim >= x.rank()) {
    builder_.Fail(InvalidArgument("all_gather: expected an axis of " + x.type().ToString() +
                                  ", got: " + std::to_string(axis)),
                  where);
    return x;
  }
  if (replicas_ == 1) return x;
  const int64_t size = x.dims()[static_cast<size_t>(dim)] * replicas_;
  return builder_.Append1(
      "all_gather", {program::Operand(x, where)},
      {{"axes", ReplicaAxis()}, {"group", replicas_}, {"dim", dim}, {"size", size}}, &where);
}

struct TraceScope::Gradients {
  explicit Gradients(train::GradientScope::Reduce reduce) : scope(std::move(reduce)) {}
  train::GradientScope scope;
};

TraceScope::TraceScope(Builder& builder, int64_t replicas, int64_t global_batch_size)
    : context_(builder, replicas, global_batch_size),
      previous_(std::exchange(current_context, &context_)) {
  // With one replica too: an outer strategy's scope does not reach in here.
  gradients_ = std::make_unique<Gradients>([this](std::span<const Value> gradients) {
    std::vector<Value> sums;
    for (const Value& g : gradients) sums.push_back(context_.AllReduce(ReduceOp::kSum, g));
    return sums;
  });
}

TraceScope::~TraceScope() { current_context = previous_; }

Value ComputeAverageLoss(const Value& per_example, const AverageLossOptions& options) {
  const ReplicaContext* context = ReplicaContext::Current();
  const int64_t own = per_example.rank() > 0 ? per_example.dims()[0] : 1;
  int64_t global = context == nullptr ? own : own * context->num_replicas_in_sync();
  if (context != nullptr && context->global_batch_size() >= 0) {
    global = context->global_batch_size();
  }
  if (options.global_batch_size) global = *options.global_batch_size;
  if (global <= 0) {
    per_example.builder()->Fail(
        InvalidArgument("average loss: expected a global batch of at least 1 example, got: " +
                        std::to_string(global)));
    return per_example;
  }
  Value weighted = per_example;
  if (options.sample_weight) {
    weighted = per_example * *options.sample_weight;
    if (per_example.builder()->status().ok() && weighted.type() != per_example.type()) {
      per_example.builder()->Fail(InvalidArgument(
          "average loss: expected a sample weight that broadcasts to the losses' " +
          per_example.type().ToString() + ", got: " + options.sample_weight->type().ToString()));
      return per_example;
    }
  }
  return program::ReduceSum(weighted) / static_cast<double>(global);
}

Value ScaleRegularizationLoss(const Value& loss) {
  const ReplicaContext* context = ReplicaContext::Current();
  const Value sum = loss.rank() == 0 ? loss : program::ReduceSum(loss);
  if (context == nullptr || context->num_replicas_in_sync() == 1) return sum;
  return sum / static_cast<double>(context->num_replicas_in_sync());
}

Value RegularizationLoss(std::span<const nn::Parameter> parameters) {
  MT_CHECK(Builder::Current() != nullptr);
  if (parameters.empty()) {
    Builder::Current()->Fail(InvalidArgument(
        "regularization loss: expected the weights of a model that was called before, got: none"));
  }
  Value sum;
  for (const nn::Parameter& p : parameters) {
    const Value own = p.regularizer() ? p.regularizer()->Record(p) : Value();
    if (!own.valid()) continue;
    sum = sum.valid() ? sum + own : own;
  }
  if (sum.valid()) return sum;
  return Builder::Current()->Constant(0, program::DType::kF32);
}

}  // namespace meshtrain::strategy
