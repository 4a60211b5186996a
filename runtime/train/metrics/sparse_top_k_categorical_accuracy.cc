#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {

Metric SparseTopKCategoricalAccuracy(std::string name, int64_t k) {
  return {std::move(name), [k](const Value& labels, const Value& predictions, const Loss&) {
            return train::SparseTopKCategoricalAccuracy(labels, predictions, k);
          }};
}

namespace by_name {

Metric SparseTopKCategoricalAccuracy(const std::string& name) {
  return metrics::SparseTopKCategoricalAccuracy(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
