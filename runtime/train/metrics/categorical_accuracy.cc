#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value CategoricalAccuracyOfBatch(const Value& labels, const Value& predictions, const Loss&) {
  return train::CategoricalAccuracy(labels, predictions);
}

}  // namespace

Metric CategoricalAccuracy(std::string name) {
  return {.name = std::move(name),
          .of_batch = CategoricalAccuracyOfBatch,
          .larger_is_better = true,
          .label_dims = ClassShares};
}

namespace by_name {

Metric CategoricalAccuracy(const std::string& name, const Options&) {
  return metrics::CategoricalAccuracy(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
