// What losses and metrics measure labels and predictions with. All record ops.
#pragma once

#include <string>
#include <vector>

#include "runtime/program/ops.h"

namespace meshtrain::train {

using program::Value;

// The dimensions that labels beside such predictions may have, as Metric::label_dims says them.
using LabelDims = std::vector<program::Dims>;
LabelDims AsPredicted(const program::TensorType& predictions);   // their own, and [N] for [N, 1]
LabelDims ClassNumbers(const program::TensorType& predictions);  // [N] for [N, C]
LabelDims ClassShares(const program::TensorType& predictions);   // [N, C] for [N, C]
// Behind "expected ", of labels that have other dimensions than `wanted`: "labels i32[8,4] beside
// predictions f32[8,4], got: labels i32[8]".
std::string LabelsOf(const program::Dims& wanted, const program::TensorType& labels,
                     const program::TensorType& predictions);

Value As(const Value& x, program::DType dtype);
// Labels in the predictions' type and dimensions: [N] stands for [N, 1].
Value LikePredictions(const Value& labels, const Value& predictions);
// The mean over the last dimension, where there is one besides the batch.
Value OverFeatures(const Value& x);
// Probabilities cut to [1e-7, 1 - 1e-7], as Keras' backend.epsilon() does.
Value CutProbabilities(const Value& p);

// Shares of a batch that are right, f32 scalars.
Value SparseCategoricalAccuracy(const Value& labels, const Value& predictions);
Value CategoricalAccuracy(const Value& labels, const Value& predictions);
// The share of labels with fewer than k other classes predicted above theirs.
Value SparseTopKCategoricalAccuracy(const Value& labels, const Value& predictions, int64_t k);
Value TopKCategoricalAccuracy(const Value& labels, const Value& predictions, int64_t k);
// A prediction above `decision` says 1.
Value BinaryAccuracy(const Value& labels, const Value& predictions, double decision);

}  // namespace meshtrain::train
