#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value MeanSquaredErrorOfBatch(const Value& labels, const Value& predictions, const Loss&) {
  return As(
      program::ReduceMean(program::Square(predictions - LikePredictions(labels, predictions))),
      program::DType::kF32);
}

}  // namespace

Metric MeanSquaredError(std::string name) {
  return {.name = std::move(name), .of_batch = MeanSquaredErrorOfBatch, .label_dims = AsPredicted};
}

namespace by_name {

Metric MeanSquaredError(const std::string& name, const Options&) {
  return metrics::MeanSquaredError(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
