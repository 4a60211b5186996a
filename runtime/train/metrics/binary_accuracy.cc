#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value BinaryAccuracyOfBatch(const Value& labels, const Value& predictions, const Loss& loss) {
  return train::BinaryAccuracy(labels, predictions, loss.function->decision());
}

}  // namespace

Metric BinaryAccuracy(std::string name) {
  return {.name = std::move(name),
          .of_batch = BinaryAccuracyOfBatch,
          .larger_is_better = true,
          .label_dims = AsPredicted};
}

namespace by_name {

Metric BinaryAccuracy(const std::string& name, const Options&) {
  return metrics::BinaryAccuracy(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
