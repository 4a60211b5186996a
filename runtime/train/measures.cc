#include "runtime/train/measures.h"

namespace meshtrain::train {

using program::Dims;
using program::DType;
using program::TensorType;

namespace {

constexpr double kProbabilityMargin = 1e-7;

}  // namespace

LabelDims AsPredicted(const TensorType& predictions) {
  LabelDims all = {predictions.dims};
  if (!predictions.dims.empty() && predictions.dims.back() == 1) {
    all.emplace_back(predictions.dims.begin(), predictions.dims.end() - 1);
  }
  return all;
}

LabelDims ClassNumbers(const TensorType& predictions) {
  if (predictions.rank() < 2) return {};
  return {Dims(predictions.dims.begin(), predictions.dims.end() - 1)};
}

LabelDims ClassShares(const TensorType& predictions) {
  if (predictions.rank() < 2) return {};
  return {predictions.dims};
}

std::string LabelsOf(const Dims& wanted, const TensorType& labels, const TensorType& predictions) {
  return "labels " + TensorType{labels.dtype, wanted}.ToString() + " beside predictions " +
         predictions.ToString() + ", got: labels " + labels.ToString();
}

Value As(const Value& x, DType dtype) { return x.dtype() == dtype ? x : program::Cast(x, dtype); }

Value LikePredictions(const Value& labels, const Value& predictions) {
  Value y = As(labels, predictions.dtype());
  if (y.rank() + 1 == predictions.rank() && predictions.dims().back() == 1) {
    y = program::ExpandDims(y, y.rank());
  }
  return y;
}

Value OverFeatures(const Value& x) { return x.rank() > 1 ? program::ReduceMean(x, {-1}) : x; }

Value CutProbabilities(const Value& p) {
  return program::ClipByValue(p, kProbabilityMargin, 1 - kProbabilityMargin);
}

Value SparseCategoricalAccuracy(const Value& labels, const Value& predictions) {
  return program::ReduceMean(
      As(program::Equal(program::ArgMax(predictions, -1), As(labels, DType::kI64)), DType::kF32));
}

Value CategoricalAccuracy(const Value& labels, const Value& predictions) {
  return program::ReduceMean(As(
      program::Equal(program::ArgMax(predictions, -1), program::ArgMax(labels, -1)), DType::kF32));
}

// Classes are counted instead of sorted: where a layout splits them, only the counts travel. As in
// Keras a class with the label's own prediction is not above it, and a prediction that is not
// finite is not right.
Value SparseTopKCategoricalAccuracy(const Value& labels, const Value& predictions, int64_t k) {
  const int64_t classes = predictions.dims().back();
  const Value is_label =
      program::Greater(program::OneHot(As(labels, DType::kI64), classes, DType::kF32), 0.5);
  const Value own = program::ReduceSum(program::Select(is_label, predictions, 0.0), {-1},
                                       /*keep_dims=*/true);
  const Value above =
      program::ReduceSum(As(program::Greater(predictions, own), DType::kF32), {-1}, true);
  const Value right =
      program::LogicalAnd(program::Less(above, static_cast<double>(k)), program::IsFinite(own));
  return program::ReduceMean(As(right, DType::kF32));
}

Value TopKCategoricalAccuracy(const Value& labels, const Value& predictions, int64_t k) {
  return SparseTopKCategoricalAccuracy(program::ArgMax(labels, -1), predictions, k);
}

Value BinaryAccuracy(const Value& labels, const Value& predictions, double decision) {
  const Value said = As(program::Greater(predictions, decision), predictions.dtype());
  return program::ReduceMean(
      As(program::Equal(said, LikePredictions(labels, predictions)), DType::kF32));
}

}  // namespace meshtrain::train
