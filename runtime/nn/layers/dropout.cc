#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Dropout::Call(const Value& x) {
  if (!(rate_ >= 0 && rate_ < 1)) {
    Fail(InvalidArgument("rate must be in [0, 1), got: " + std::to_string(rate_)));
    return x;
  }
  if (!context().training || rate_ == 0) return x;
  if (!context().step) {
    Fail(InvalidArgument("dropout in training needs a step counter (CallContext::step)"));
    return x;
  }
  return program::Dropout(x, rate_, seed_.value_or(context().seed), *context().step);
}

namespace by_name {

LayerPtr Dropout(const std::string& name, const Options& options) {
  return Make<nn::Dropout>(options.Number("rate", 0), options.MaybeInt("seed"), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
