// What training makes small, and what it reports. Definitions are Keras'.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/ops.h"

namespace meshtrain::train {

using program::Value;

enum class LossKind : uint8_t {
  kSparseCategoricalCrossentropy,  // labels [N] of class numbers, predictions [N, C]
  kCategoricalCrossentropy,        // labels [N, C]
  kBinaryCrossentropy,             // labels like the predictions, or [N] with predictions [N, 1]
  kMeanSquaredError,               // as kBinaryCrossentropy
  kMeanAbsoluteError,
};
enum class LossReduction : uint8_t { kMean, kSum };

std::string_view LossName(
    LossKind kind);  // "sparse_categorical_crossentropy", as the manifest spells it
const std::vector<std::string>& LossNames();
std::optional<LossKind> ParseLoss(std::string_view name);  // also "mse", "mae"

struct Loss {
  LossKind kind = LossKind::kSparseCategoricalCrossentropy;
  bool from_logits = false;
  // What the gradient is taken of: the mean over the batch, or its sum. The report is the mean in
  // both cases.
  LossReduction reduction = LossReduction::kMean;

  // Whether labels of this type can be this loss's, and of the predictions' shape. Errors:
  // kInvalidArgument: "sparse_categorical_crossentropy takes ..., got: labels f32[8]".
  Status CheckLabels(const program::TensorType& labels) const;
  Status CheckLabels(const program::TensorType& labels,
                     const program::TensorType& predictions) const;
  // The labels are numbers from 0 to n - 1; 0: any numbers.
  int64_t Classes(const program::TensorType& predictions) const;

  // [N, ...], one value per example (and position). Probabilities (from_logits false) are cut to
  // [1e-7, 1 - 1e-7].
  Value PerExample(const Value& labels, const Value& predictions) const;
};

enum class MetricKind : uint8_t {
  kAccuracy,  // resolved by the loss, as Keras does: one of the three below
  kSparseCategoricalAccuracy,
  kCategoricalAccuracy,
  kBinaryAccuracy,
  kMeanSquaredError,
  kMeanAbsoluteError,
};
const std::vector<std::string>& MetricNames();
std::optional<MetricKind> ParseMetric(std::string_view name);

// One batch's value, an f32 scalar: the mean over its examples.
struct Metric {
  std::string name;  // of the program's output
  MetricKind kind = MetricKind::kAccuracy;
  Value OfBatch(const Value& labels, const Value& predictions, const Loss& loss) const;
};
// The metric of a known name.
Metric MetricOf(std::string_view name);

}  // namespace meshtrain::train
