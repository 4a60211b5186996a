#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value SparseCategoricalAccuracyOfBatch(const Value& labels, const Value& predictions, const Loss&) {
  return train::SparseCategoricalAccuracy(labels, predictions);
}

}  // namespace

Metric SparseCategoricalAccuracy(std::string name) {
  return {.name = std::move(name),
          .of_batch = SparseCategoricalAccuracyOfBatch,
          .larger_is_better = true,
          .label_dims = ClassNumbers};
}

namespace by_name {

Metric SparseCategoricalAccuracy(const std::string& name, const Options&) {
  return metrics::SparseCategoricalAccuracy(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
