// A field of `program`: the loss times a number.
#include "runtime/recipe/rows.h"

namespace meshtrain::samples {
namespace {

using program::Value;

class Scaled final : public train::LossFunction {
 public:
  Scaled(train::Loss loss, double factor) : loss_(std::move(loss)), factor_(factor) {}
  std::string_view name() const override { return loss_.function->name(); }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    return loss_.PerExample(labels, predictions) * factor_;
  }
  Status CheckLabels(const program::TensorType& labels) const override {
    return loss_.CheckLabels(labels);
  }
  std::vector<program::Dims> LabelDims(const program::TensorType& predictions) const override {
    return loss_.function->LabelDims(predictions);
  }

 private:
  const train::Loss loss_;
  const double factor_;
};

}  // namespace

recipe::FieldRow LossScaleRow() {
  return {
      manifest::option::Number("loss_scale", {.above = 0},
                               {.about = "The loss times this.", .fallback = "1", .sample = "2"}),
      [](const choice::Options& given, train::Recipe* recipe) {
        for (train::Head& head : recipe->heads) {
          head.loss.function = std::make_shared<Scaled>(head.loss, given.Number("loss_scale", 1));
        }
        return OkStatus();
      }};
}

}  // namespace meshtrain::samples
