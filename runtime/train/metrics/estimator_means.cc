// What tf.estimator's heads report beside the loss.
#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::metrics {
namespace {

Value LabelMeanOfBatch(const Value& labels, const Value& predictions, const Loss&) {
  return As(program::ReduceMean(LikePredictions(labels, predictions)), program::DType::kF32);
}

Value PredictionMeanOfBatch(const Value&, const Value& predictions, const Loss& loss) {
  return As(program::ReduceMean(loss.function->Probability(predictions)), program::DType::kF32);
}

}  // namespace

Metric LabelMean(std::string name) {
  return {.name = std::move(name), .of_batch = LabelMeanOfBatch, .label_dims = AsPredicted};
}

Metric PredictionMean(std::string name) {
  return {.name = std::move(name), .of_batch = PredictionMeanOfBatch, .label_dims = AsPredicted};
}

namespace by_name {

Metric LabelMean(const std::string& name, const Options&) { return metrics::LabelMean(name); }
Metric PredictionMean(const std::string& name, const Options&) {
  return metrics::PredictionMean(name);
}

}  // namespace by_name
}  // namespace meshtrain::train::metrics
