#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

void Dense::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (units_ <= 0) {
    return Fail(InvalidArgument("units must be at least 1, got: " + std::to_string(units_)));
  }
  if (x.rank() < 2 || !mesh::IsFloat(x.dtype)) {
    return Fail(InvalidArgument("dense takes floats [..., features], got: " + x.ToString() +
                                (x.rank() < 2 ? "" : " (scale or cast the input)")));
  }
  kernel_ =
      AddParameter("kernel", {x.dtype, {x.dims.back(), units_}}, options_.kernel_initializer,
                   {.layout = options_.kernel_layout, .regularizer = options_.kernel_regularizer});
  if (!options_.use_bias) return;
  bias_ = AddParameter("bias", {x.dtype, {units_}}, options_.bias_initializer,
                       {.layout = options_.bias_layout, .regularizer = options_.bias_regularizer});
}

Value Dense::Call(const Value& x) {
  Value y = program::MatMul(x, kernel_);
  if (options_.use_bias) y = y + bias_;
  return Activate(y, options_.activation);
}

namespace by_name {

LayerPtr Dense(const std::string& name, const Options& given) {
  DenseOptions options{.name = name};
  options.activation = ActivationOf(given);
  options.use_bias = given.Bool("use_bias", options.use_bias);
  options.kernel_initializer =
      InitializerOf(given, "kernel_initializer", options.kernel_initializer);
  options.bias_initializer = InitializerOf(given, "bias_initializer", options.bias_initializer);
  options.kernel_regularizer = RegularizerOf(given, "kernel_regularizer");
  options.bias_regularizer = RegularizerOf(given, "bias_regularizer");
  options.kernel_layout = given.Texts("kernel_layout");
  options.bias_layout = given.Texts("bias_layout");
  return Make<nn::Dense>(given.Int("units", 1), std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
