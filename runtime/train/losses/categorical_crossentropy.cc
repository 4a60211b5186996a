#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::losses {
namespace {

class CategoricalCrossentropyFunction final : public LossFunction {
 public:
  explicit CategoricalCrossentropyFunction(bool from_logits) : from_logits_(from_logits) {}
  std::string_view name() const override { return "categorical_crossentropy"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    const Value y = As(labels, predictions.dtype());
    if (from_logits_) return program::SoftmaxCrossEntropy(predictions, y);
    return -program::ReduceSum(y * Logits(predictions), {-1});
  }
  Value Logits(const Value& predictions) const override {
    if (from_logits_) return predictions;
    return program::Log(
        CutProbabilities(predictions / program::ReduceSum(predictions, {-1}, true)));
  }
  Status CheckLabels(const program::TensorType& labels) const override {
    if (labels.rank() >= 2) return OkStatus();
    return Refuse("a number for each class [N, classes]", labels);
  }
  std::vector<program::Dims> LabelDims(const program::TensorType& predictions) const override {
    return {predictions.dims};
  }
  Value Accuracy(const Value& labels, const Value& predictions) const override {
    return CategoricalAccuracy(labels, predictions);
  }

 private:
  bool from_logits_;
};

}  // namespace

Loss CategoricalCrossentropy(CrossentropyOptions options) {
  return {std::make_shared<CategoricalCrossentropyFunction>(options.from_logits),
          options.reduction};
}

namespace by_name {

Loss CategoricalCrossentropy(const Options& options) {
  return losses::CategoricalCrossentropy(CrossentropyOptionsOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::losses
