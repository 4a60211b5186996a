#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

Value Flatten::Call(const Value& x) {
  const program::Dims dims = x.dims();
  if (dims.empty()) {
    Fail(InvalidArgument("flatten takes [N, ...], got: " + x.type().ToString()));
    return x;
  }
  if (dims.size() == 2) return x;
  int64_t features = 1;
  for (size_t d = 1; d < dims.size(); ++d) features *= dims[d];
  return program::Reshape(x, {dims[0], features});
}

namespace by_name {

LayerPtr Flatten(const std::string& name, const Options&) { return Make<nn::Flatten>(name); }

}  // namespace by_name
}  // namespace meshtrain::nn
