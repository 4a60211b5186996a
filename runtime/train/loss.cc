#include "runtime/train/loss.h"

#include <array>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::train {

using program::DType;
using program::TensorType;

namespace {

constexpr double kProbabilityMargin = 1e-7;  // Keras' backend.epsilon()

constexpr std::array<std::pair<std::string_view, LossKind>, 7> kLosses = {{
    {"sparse_categorical_crossentropy", LossKind::kSparseCategoricalCrossentropy},
    {"categorical_crossentropy", LossKind::kCategoricalCrossentropy},
    {"binary_crossentropy", LossKind::kBinaryCrossentropy},
    {"mean_squared_error", LossKind::kMeanSquaredError},
    {"mean_absolute_error", LossKind::kMeanAbsoluteError},
    {"mse", LossKind::kMeanSquaredError},
    {"mae", LossKind::kMeanAbsoluteError},
}};

constexpr std::array<std::pair<std::string_view, MetricKind>, 8> kMetrics = {{
    {"accuracy", MetricKind::kAccuracy},
    {"sparse_categorical_accuracy", MetricKind::kSparseCategoricalAccuracy},
    {"categorical_accuracy", MetricKind::kCategoricalAccuracy},
    {"binary_accuracy", MetricKind::kBinaryAccuracy},
    {"mean_squared_error", MetricKind::kMeanSquaredError},
    {"mean_absolute_error", MetricKind::kMeanAbsoluteError},
    {"mse", MetricKind::kMeanSquaredError},
    {"mae", MetricKind::kMeanAbsoluteError},
}};

template <typename Table>
auto Lookup(const Table& table, std::string_view name) -> std::optional<decltype(table[0].second)> {
  for (const auto& [known, kind] : table) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

template <typename Table>
std::vector<std::string> Names(const Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : table) names.emplace_back(name);
  return names;
}

Value As(const Value& x, DType dtype) { return x.dtype() == dtype ? x : program::Cast(x, dtype); }

// Labels in the predictions' type and dimensions: [N] stands for [N, 1].
Value LikePredictions(const Value& labels, const Value& predictions) {
  Value y = As(labels, predictions.dtype());
  if (y.rank() + 1 == predictions.rank() && predictions.dims().back() == 1) {
    y = program::ExpandDims(y, y.rank());
  }
  return y;
}

// The mean over the last dimension, where there is one besides the batch.
Value OverFeatures(const Value& x) { return x.rank() > 1 ? program::ReduceMean(x, {-1}) : x; }

Value CutProbabilities(const Value& p) {
  return program::ClipByValue(p, kProbabilityMargin, 1 - kProbabilityMargin);
}

}  // namespace

std::string_view LossName(LossKind kind) { return kLosses[static_cast<size_t>(kind)].first; }
const std::vector<std::string>& LossNames() {
  static const std::vector<std::string> names = Names(kLosses);
  return names;
}
std::optional<LossKind> ParseLoss(std::string_view name) { return Lookup(kLosses, name); }

const std::vector<std::string>& MetricNames() {
  static const std::vector<std::string> names = Names(kMetrics);
  return names;
}
std::optional<MetricKind> ParseMetric(std::string_view name) { return Lookup(kMetrics, name); }

Status Loss::CheckLabels(const TensorType& labels) const {
  const auto refuse = [&](const std::string& takes) {
    return InvalidArgument(std::string(LossName(kind)) + " takes " + takes + ", got: labels " +
                           labels.ToString());
  };
  const bool whole =
      labels.dtype == DType::kU8 || labels.dtype == DType::kI32 || labels.dtype == DType::kI64;
  if (kind == LossKind::kSparseCategoricalCrossentropy && !whole) {
    return refuse("class numbers (u8, i32, i64)");
  }
  if (kind == LossKind::kCategoricalCrossentropy && labels.rank() < 2) {
    return refuse("a number for each class [N, classes]");
  }
  return OkStatus();
}

Status Loss::CheckLabels(const TensorType& labels, const TensorType& predictions) const {
  MT_RETURN_IF_ERROR(CheckLabels(labels));
  program::Dims wanted = predictions.dims;
  const bool sparse = kind == LossKind::kSparseCategoricalCrossentropy;
  if (sparse && !wanted.empty()) wanted.pop_back();
  if (labels.dims == wanted) return OkStatus();
  // [N] stands for [N, 1].
  if (!sparse && kind != LossKind::kCategoricalCrossentropy && !wanted.empty() &&
      wanted.back() == 1) {
    wanted.pop_back();
    if (labels.dims == wanted) return OkStatus();
    wanted.push_back(1);
  }
  return InvalidArgument(std::string(LossName(kind)) + " of predictions " + predictions.ToString() +
                         " takes labels " + TensorType{labels.dtype, wanted}.ToString() +
                         ", got: labels " + labels.ToString());
}

int64_t Loss::Classes(const TensorType& predictions) const {
  if (kind == LossKind::kBinaryCrossentropy) return 2;
  const bool sparse = kind == LossKind::kSparseCategoricalCrossentropy;
  return sparse && !predictions.dims.empty() ? predictions.dims.back() : 0;
}

Value Loss::PerExample(const Value& labels, const Value& predictions) const {
  switch (kind) {
    case LossKind::kSparseCategoricalCrossentropy: {
      const Value logits = from_logits ? predictions : program::Log(CutProbabilities(predictions));
      return program::SparseSoftmaxCrossEntropy(
          logits, labels.dtype() == DType::kU8 ? As(labels, DType::kI32) : labels);
    }
    case LossKind::kCategoricalCrossentropy: {
      const Value y = As(labels, predictions.dtype());
      if (from_logits) return program::SoftmaxCrossEntropy(predictions, y);
      const Value p = CutProbabilities(predictions / program::ReduceSum(predictions, {-1}, true));
      return -program::ReduceSum(y * program::Log(p), {-1});
    }
    case LossKind::kBinaryCrossentropy: {
      const Value y = LikePredictions(labels, predictions);
      if (from_logits) return OverFeatures(program::SigmoidCrossEntropy(predictions, y));
      const Value p = CutProbabilities(predictions);
      return OverFeatures(-(y * program::Log(p) + (1.0 - y) * program::Log(1.0 - p)));
    }
    case LossKind::kMeanSquaredError:
      return OverFeatures(program::Square(predictions - LikePredictions(labels, predictions)));
    case LossKind::kMeanAbsoluteError:
      return OverFeatures(program::Abs(predictions - LikePredictions(labels, predictions)));
  }
  return {};
}

Metric MetricOf(std::string_view name) {
  const auto kind = ParseMetric(name);
  MT_CHECK(kind.has_value());
  return {std::string(name), *kind};
}

Value Metric::OfBatch(const Value& labels, const Value& predictions, const Loss& loss) const {
  MetricKind resolved = kind;
  if (resolved == MetricKind::kAccuracy) {
    resolved = loss.kind == LossKind::kSparseCategoricalCrossentropy
                   ? MetricKind::kSparseCategoricalAccuracy
               : loss.kind == LossKind::kCategoricalCrossentropy ? MetricKind::kCategoricalAccuracy
                                                                 : MetricKind::kBinaryAccuracy;
  }
  switch (resolved) {
    case MetricKind::kSparseCategoricalAccuracy:
      return program::ReduceMean(As(
          program::Equal(program::ArgMax(predictions, -1), As(labels, DType::kI64)), DType::kF32));
    case MetricKind::kCategoricalAccuracy:
      return program::ReduceMean(
          As(program::Equal(program::ArgMax(predictions, -1), program::ArgMax(labels, -1)),
             DType::kF32));
    case MetricKind::kMeanSquaredError:
      return As(
          program::ReduceMean(program::Square(predictions - LikePredictions(labels, predictions))),
          DType::kF32);
    case MetricKind::kMeanAbsoluteError:
      return As(
          program::ReduceMean(program::Abs(predictions - LikePredictions(labels, predictions))),
          DType::kF32);
    default: {
      // A probability above one half; a logit above zero says the same.
      const double threshold =
          loss.kind == LossKind::kBinaryCrossentropy && loss.from_logits ? 0 : 0.5;
      const Value said = As(program::Greater(predictions, threshold), predictions.dtype());
      return program::ReduceMean(
          As(program::Equal(said, LikePredictions(labels, predictions)), DType::kF32));
    }
  }
}

}  // namespace meshtrain::train
