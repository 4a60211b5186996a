#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Add::CallMany(std::span<const Value> inputs) {
  Value sum = inputs[0];
  for (const Value& input : inputs.subspan(1)) {
    if (input.type() != inputs[0].type()) {
      Fail(InvalidArgument("add takes inputs of one type, got: " + inputs[0].type().ToString() +
                           " and " + input.type().ToString()));
      return sum;
    }
    sum = sum + input;
  }
  return sum;
}

namespace by_name {

LayerPtr Add(const std::string& name, const Options&) { return Make<nn::Add>(name); }

}  // namespace by_name
}  // namespace meshtrain::nn
