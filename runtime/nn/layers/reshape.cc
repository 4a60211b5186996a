#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Reshape::Call(const Value& x) {
  const program::Dims dims = x.dims();
  if (dims.empty()) {
    Fail(InvalidArgument("reshape takes [N, ...], got: " + x.type().ToString()));
    return x;
  }
  program::Dims out = dims_;
  out.insert(out.begin(), dims[0]);
  return program::Reshape(x, out);
}

namespace by_name {

LayerPtr Reshape(const std::string& name, const Options& options) {
  return Make<nn::Reshape>(options.Ints("dims").value_or(program::Dims{}), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
