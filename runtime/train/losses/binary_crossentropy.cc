#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::losses {
namespace {

class BinaryCrossentropyFunction final : public LossFunction {
 public:
  explicit BinaryCrossentropyFunction(bool from_logits) : from_logits_(from_logits) {}
  std::string_view name() const override { return "binary_crossentropy"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    const Value y = LikePredictions(labels, predictions);
    if (from_logits_) return OverFeatures(program::SigmoidCrossEntropy(predictions, y));
    const Value p = CutProbabilities(predictions);
    return OverFeatures(-(y * program::Log(p) + (1.0 - y) * program::Log(1.0 - p)));
  }
  int64_t Classes(const program::TensorType&) const override { return 2; }
  // A probability above one half; a logit above zero says the same.
  double decision() const override { return from_logits_ ? 0 : 0.5; }
  Value Probability(const Value& predictions) const override {
    return from_logits_ ? program::Sigmoid(predictions) : predictions;
  }

 private:
  bool from_logits_;
};

}  // namespace

Loss BinaryCrossentropy(CrossentropyOptions options) {
  return {std::make_shared<BinaryCrossentropyFunction>(options.from_logits), options.reduction};
}

namespace by_name {

Loss BinaryCrossentropy(const Options& options) {
  return losses::BinaryCrossentropy(CrossentropyOptionsOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::losses
