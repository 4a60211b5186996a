#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::losses {
namespace {

class SparseCategoricalCrossentropyFunction final : public LossFunction {
 public:
  explicit SparseCategoricalCrossentropyFunction(bool from_logits) : from_logits_(from_logits) {}
  std::string_view name() const override { return "sparse_categorical_crossentropy"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    return program::SparseSoftmaxCrossEntropy(
        Logits(predictions),
        labels.dtype() == program::DType::kU8 ? As(labels, program::DType::kI32) : labels);
  }
  Value Logits(const Value& predictions) const override {
    return from_logits_ ? predictions : program::Log(CutProbabilities(predictions));
  }
  Status CheckLabels(const program::TensorType& labels) const override {
    const bool whole = labels.dtype == program::DType::kU8 ||
                       labels.dtype == program::DType::kI32 || labels.dtype == program::DType::kI64;
    if (whole) return OkStatus();
    return Refuse("class numbers (u8, i32, i64)", labels);
  }
  std::vector<program::Dims> LabelDims(const program::TensorType& predictions) const override {
    program::Dims dims = predictions.dims;
    if (!dims.empty()) dims.pop_back();
    return {dims};
  }
  int64_t Classes(const program::TensorType& predictions) const override {
    return predictions.dims.empty() ? 0 : predictions.dims.back();
  }
  Value Accuracy(const Value& labels, const Value& predictions) const override {
    return SparseCategoricalAccuracy(labels, predictions);
  }

 private:
  bool from_logits_;
};

}  // namespace

Loss SparseCategoricalCrossentropy(CrossentropyOptions options) {
  return {std::make_shared<SparseCategoricalCrossentropyFunction>(options.from_logits),
          options.reduction};
}

namespace by_name {

Loss SparseCategoricalCrossentropy(const Options& options) {
  return losses::SparseCategoricalCrossentropy(CrossentropyOptionsOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::losses
