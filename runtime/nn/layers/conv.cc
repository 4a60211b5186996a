#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/layers/windows.h"

namespace meshtrain::nn {

std::string_view Conv::kind() const {
  return spatial_ == 1 ? "conv_1d" : spatial_ == 2 ? "conv_2d" : "conv_3d";
}

void Conv::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckConv(kind(), x, spatial_, kernel_size_, options_, filters_); !fits.ok()) {
    return Fail(fits);
  }
  const int64_t channels = x.dims.back();
  if (options_.groups <= 0 || channels % options_.groups != 0 || filters_ % options_.groups != 0) {
    return Fail(InvalidArgument("groups must divide the " + std::to_string(channels) +
                                " channels of the input and the " + std::to_string(filters_) +
                                " filters, got: " + std::to_string(options_.groups)));
  }
  program::Dims dims = ForEachSpatial(kernel_size_, spatial_);
  dims.push_back(channels / options_.groups);
  dims.push_back(filters_);
  kernel_ =
      AddParameter("kernel", {x.dtype, dims}, options_.kernel_initializer,
                   {.layout = options_.kernel_layout, .regularizer = options_.kernel_regularizer});
  if (!options_.use_bias) return;
  bias_ = AddParameter("bias", {x.dtype, {filters_}}, options_.bias_initializer,
                       {.layout = options_.bias_layout, .regularizer = options_.bias_regularizer});
}

Value Conv::Call(const Value& x) {
  Value y = program::Conv(x, kernel_, WindowsOf(options_, spatial_));
  if (options_.use_bias) y = y + bias_;
  return Activate(y, options_.activation);
}

ConvOptions ReadConvOptions(const std::string& name, const Options& given) {
  ConvOptions options{.name = name};
  options.strides = given.Ints("strides").value_or(options.strides);
  options.dilations = given.Ints("dilation_rate").value_or(options.dilations);
  options.same = given.Text("padding") == "same";
  options.groups = given.Int("groups", options.groups);
  options.activation = ActivationOf(given);
  options.use_bias = given.Bool("use_bias", options.use_bias);
  options.kernel_initializer =
      InitializerOf(given, "kernel_initializer", options.kernel_initializer);
  options.bias_initializer = InitializerOf(given, "bias_initializer", options.bias_initializer);
  options.kernel_regularizer = RegularizerOf(given, "kernel_regularizer");
  options.bias_regularizer = RegularizerOf(given, "bias_regularizer");
  options.kernel_layout = given.Texts("kernel_layout");
  options.bias_layout = given.Texts("bias_layout");
  return options;
}

namespace by_name {
namespace {

LayerPtr ConvOf(int spatial, const std::string& name, const Options& given) {
  return Make<nn::Conv>(spatial, given.Int("filters", 1),
                        given.Ints("kernel_size").value_or(Sizes{1}), ReadConvOptions(name, given));
}

}  // namespace

LayerPtr Conv1d(const std::string& name, const Options& given) { return ConvOf(1, name, given); }
LayerPtr Conv2d(const std::string& name, const Options& given) { return ConvOf(2, name, given); }
LayerPtr Conv3d(const std::string& name, const Options& given) { return ConvOf(3, name, given); }

}  // namespace by_name
}  // namespace meshtrain::nn
