#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value AccuracyOfBatch(const Value& labels, const Value& predictions, const Loss& loss) {
  return loss.function->Accuracy(labels, predictions);
}

}  // namespace

Metric Accuracy(std::string name) {
  return {.name = std::move(name), .of_batch = AccuracyOfBatch, .larger_is_better = true};
}

namespace by_name {

Metric Accuracy(const std::string& name, const Options&) { return metrics::Accuracy(name); }

}  // namespace by_name
}  // namespace meshtrain::train::metrics
