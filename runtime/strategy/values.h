// Values that replicas hold each for itself, and how a global batch becomes them. Pure.
//
// A global batch of N examples over R replicas: replica r gets rows [r*c, min((r+1)*c, N)) with c =
// ceil(N/R), as tf.distribute cuts: 5 over 2 is 3 + 2, 1 over 2 is 1 + 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::strategy {

enum class ReduceOp : uint8_t { kSum, kMean };

// One value for each replica of this process, in the order of their ranks.
struct PerReplica {
  std::vector<mesh::Tensor> values;
};

// What Strategy::Run feeds: the components of each replica of this process.
struct PerReplicaBatch {
  std::vector<std::vector<mesh::Tensor>> replicas;  // [replica of this process][component]
  int64_t global_size =
      -1;  // examples of all replicas together; -1: unknown (values that are no batch)
};

// The rows of a batch that replica `replica` of `replicas` gets: [first, second).
std::pair<int64_t, int64_t> RowsOf(int64_t examples, int64_t replicas, int64_t replica);

// Rows [begin, end) of a tensor's first dimension.
mesh::Tensor Rows(const mesh::Tensor& x, int64_t begin, int64_t end);

// The pieces of replicas [first, first + count) of `replicas`. Errors: kInvalidArgument for
// components whose first dimensions differ or that have none.
Result<PerReplicaBatch> SplitBatch(std::span<const mesh::Tensor> components, int64_t replicas,
                                   int64_t first, int64_t count);

// Floats are added and divided in f64, and RoundedTo their own type once, at the end; integers are
// added in their own type.
//
// The error of two replicas' values that cannot be added.
Status OfDifferentTypes(const mesh::Tensor& a, const mesh::Tensor& b);
// The sum, element by element, in order: f64 of floats. Errors: kInvalidArgument for tensors of
// different types, or bools.
Result<mesh::Tensor> AddAll(std::span<const mesh::Tensor> values);
// The sum over one dimension (negative: from the end), which disappears: f64 of floats. Errors:
// kInvalidArgument.
Result<mesh::Tensor> SumAlong(const mesh::Tensor& x, int64_t axis);
// x / divisor. Errors: kInvalidArgument for integers: a mean of integers would lose what is left
// over.
Result<mesh::Tensor> DivideBy(const mesh::Tensor& x, double divisor);
// f64 of floats; integers as they are.
mesh::Tensor Widened(const mesh::Tensor& x);
// What is f64 in `dtype`; integers as they are.
mesh::Tensor RoundedTo(mesh::DType dtype, const mesh::Tensor& x);

}  // namespace meshtrain::strategy
