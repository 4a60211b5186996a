#include "runtime/train/measures.h"

namespace meshtrain::train {

using program::DType;

namespace {

constexpr double kProbabilityMargin = 1e-7;

}  // namespace

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

Value BinaryAccuracy(const Value& labels, const Value& predictions, double decision) {
  const Value said = As(program::Greater(predictions, decision), predictions.dtype());
  return program::ReduceMean(
      As(program::Equal(said, LikePredictions(labels, predictions)), DType::kF32));
}

}  // namespace meshtrain::train
