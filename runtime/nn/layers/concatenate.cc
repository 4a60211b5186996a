#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Concatenate::CallMany(std::span<const Value> inputs) {
  const int64_t rank = inputs[0].rank();
  const int64_t axis = axis_ < 0 ? axis_ + rank : axis_;
  if (axis < 0 || axis >= rank) {
    Fail(InvalidArgument("axis " + std::to_string(axis_) + " is not one of " +
                         inputs[0].type().ToString()));
    return inputs[0];
  }
  std::vector<program::Operand> parts(inputs.begin(), inputs.end());
  return program::Concat(parts, axis);
}

namespace by_name {

LayerPtr Concatenate(const std::string& name, const Options& options) {
  return Make<nn::Concatenate>(options.Int("axis", -1), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
