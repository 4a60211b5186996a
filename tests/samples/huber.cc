// A loss: squares near the label, straight lines farther away (Huber 1964).
#include "runtime/recipe/rows.h"
#include "runtime/train/measures.h"

namespace meshtrain::samples {
namespace {

using manifest::option::Number;
using program::Value;

class Huber final : public train::LossFunction {
 public:
  explicit Huber(double delta) : delta_(delta) {}
  std::string_view name() const override { return "huber"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    const Value away = program::Abs(predictions - train::LikePredictions(labels, predictions));
    // |a| <= delta: a^2 / 2; else delta * (|a| - delta / 2).
    const Value near = program::Minimum(away, delta_);
    return train::OverFeatures(near * (away - near * 0.5));
  }
  Status CheckLabels(const program::TensorType& labels) const override {
    return mesh::IsFloat(labels.dtype) ? OkStatus() : Refuse("numbers (f32, f64)", labels);
  }

 private:
  double delta_;
};

}  // namespace

recipe::LossRow HuberRow() {
  return {{.name = "huber",
           .about = "Squares near the label, straight lines farther away.",
           .options = {Number("delta", {.above = 0},
                              {.about = "How far squares go.", .fallback = "1", .sample = "2"})}},
          [](const choice::Options& options) -> train::Loss {
            return {std::make_shared<Huber>(options.Number("delta", 1))};
          }};
}

}  // namespace meshtrain::samples
