#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value BinaryAccuracyOfBatch(const Value& labels, const Value& predictions, const Loss& loss) {
  return train::BinaryAccuracy(labels, predictions, loss.function->decision());
}

}  // namespace

Metric BinaryAccuracy(std::string name) { return {std::move(name), BinaryAccuracyOfBatch}; }

namespace by_name {

Metric BinaryAccuracy(const std::string& name) { return metrics::BinaryAccuracy(name); }

}  // namespace by_name
}  // namespace meshtrain::train::metrics
