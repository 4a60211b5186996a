#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value RepeatVector::Call(const Value& x) {
  if (x.rank() != 2) {
    Fail(InvalidArgument("repeat_vector takes [N, D], got: " + x.type().ToString()));
    return x;
  }
  if (times_ < 1) {
    Fail(InvalidArgument("n must be at least 1, got: " + std::to_string(times_)));
    return x;
  }
  const int64_t examples = x.dims()[0], features = x.dims()[1];
  return program::BroadcastTo(program::Reshape(x, {examples, 1, features}),
                              {examples, times_, features});
}

namespace by_name {

LayerPtr RepeatVector(const std::string& name, const Options& options) {
  return Make<nn::RepeatVector>(options.Int("n", 1), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
