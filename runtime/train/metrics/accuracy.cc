#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value AccuracyOfBatch(const Value& labels, const Value& predictions, const Loss& loss) {
  return loss.function->Accuracy(labels, predictions);
}

}  // namespace

Metric Accuracy(std::string name) { return {std::move(name), AccuracyOfBatch}; }

namespace by_name {

Metric Accuracy(const std::string& name) { return metrics::Accuracy(name); }

}  // namespace by_name
}  // namespace meshtrain::train::metrics
