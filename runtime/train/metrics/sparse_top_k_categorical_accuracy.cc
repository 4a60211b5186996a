#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {

Metric SparseTopKCategoricalAccuracy(std::string name, int64_t k) {
  return {.name = std::move(name),
          .of_batch =
              [k](const Value& labels, const Value& predictions, const Loss&) {
                return train::SparseTopKCategoricalAccuracy(labels, predictions, k);
              },
          .larger_is_better = true,
          .label_dims = ClassNumbers};
}

namespace by_name {

Metric SparseTopKCategoricalAccuracy(const std::string& name, const Options& options) {
  return metrics::SparseTopKCategoricalAccuracy(name, options.Int("k", 5));
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
