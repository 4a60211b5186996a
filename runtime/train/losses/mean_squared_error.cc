#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::losses {
namespace {

class MeanSquaredErrorFunction final : public LossFunction {
 public:
  std::string_view name() const override { return "mean_squared_error"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    return OverFeatures(program::Square(predictions - LikePredictions(labels, predictions)));
  }
};

}  // namespace

Loss MeanSquaredError(LossReduction reduction) {
  return {std::make_shared<MeanSquaredErrorFunction>(), reduction};
}

namespace by_name {

Loss MeanSquaredError(const Options& options) {
  return losses::MeanSquaredError(ReductionOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::losses
