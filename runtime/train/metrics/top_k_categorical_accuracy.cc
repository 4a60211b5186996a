#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {

Metric TopKCategoricalAccuracy(std::string name, int64_t k) {
  return {.name = std::move(name),
          .of_batch =
              [k](const Value& labels, const Value& predictions, const Loss&) {
                return train::TopKCategoricalAccuracy(labels, predictions, k);
              },
          .larger_is_better = true,
          .label_dims = ClassShares};
}

namespace by_name {

Metric TopKCategoricalAccuracy(const std::string& name, const Options& options) {
  return metrics::TopKCategoricalAccuracy(name, options.Int("k", 5));
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
