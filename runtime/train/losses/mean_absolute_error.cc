#include "runtime/train/by_name.h"
#include "runtime/train/loss.h"
#include "runtime/train/measures.h"

namespace meshtrain::train::losses {
namespace {

class MeanAbsoluteErrorFunction final : public LossFunction {
 public:
  std::string_view name() const override { return "mean_absolute_error"; }
  Value PerExample(const Value& labels, const Value& predictions) const override {
    return OverFeatures(program::Abs(predictions - LikePredictions(labels, predictions)));
  }
};

}  // namespace

Loss MeanAbsoluteError(LossReduction reduction) {
  return {std::make_shared<MeanAbsoluteErrorFunction>(), reduction};
}

namespace by_name {

Loss MeanAbsoluteError(const Options& options) {
  return losses::MeanAbsoluteError(ReductionOf(options));
}

}  // namespace by_name
}  // namespace meshtrain::train::losses
