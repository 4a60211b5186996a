#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value MeanAbsoluteErrorOfBatch(const Value& labels, const Value& predictions, const Loss&) {
  return As(program::ReduceMean(program::Abs(predictions - LikePredictions(labels, predictions))),
            program::DType::kF32);
}

}  // namespace

Metric MeanAbsoluteError(std::string name) {
  return {.name = std::move(name), .of_batch = MeanAbsoluteErrorOfBatch, .label_dims = AsPredicted};
}

namespace by_name {

Metric MeanAbsoluteError(const std::string& name, const Options&) {
  return metrics::MeanAbsoluteError(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
