#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/layers/windows.h"

namespace meshtrain::nn {

std::string_view DepthwiseConv::kind() const {
  return spatial_ == 1 ? "depthwise_conv_1d" : "depthwise_conv_2d";
}

void DepthwiseConv::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckConv(kind(), x, spatial_, kernel_size_, options_, 1); !fits.ok()) {
    return Fail(fits);
  }
  if (multiplier_ < 1) {
    return Fail(InvalidArgument("depth_multiplier must be at least 1, got: " +
                                std::to_string(multiplier_)));
  }
  program::Dims dims = ForEachSpatial(kernel_size_, spatial_);
  dims.push_back(x.dims.back());
  dims.push_back(multiplier_);
  kernel_ =
      AddParameter("kernel", {x.dtype, dims}, options_.kernel_initializer,
                   {.layout = options_.kernel_layout, .regularizer = options_.kernel_regularizer});
  if (!options_.use_bias) return;
  bias_ = AddParameter("bias", {x.dtype, {x.dims.back() * multiplier_}}, options_.bias_initializer,
                       {.layout = options_.bias_layout, .regularizer = options_.bias_regularizer});
}

Value DepthwiseConv::Call(const Value& x) {
  // As many groups as channels: [sizes..., C, M] is [sizes..., 1, C * M], group after group.
  program::Dims grouped = ForEachSpatial(kernel_size_, spatial_);
  grouped.push_back(1);
  grouped.push_back(x.dims().back() * multiplier_);
  Value y = program::Conv(x, program::Reshape(kernel_, grouped), WindowsOf(options_, spatial_));
  if (options_.use_bias) y = y + bias_;
  return Activate(y, options_.activation);
}

namespace by_name {
namespace {

LayerPtr Of(int spatial, const std::string& name, const Options& given) {
  return Make<nn::DepthwiseConv>(spatial, given.Ints("kernel_size").value_or(Sizes{1}),
                                 given.Int("depth_multiplier", 1), ReadConvOptions(name, given));
}

}  // namespace

LayerPtr DepthwiseConv1d(const std::string& name, const Options& o) { return Of(1, name, o); }
LayerPtr DepthwiseConv2d(const std::string& name, const Options& o) { return Of(2, name, o); }

}  // namespace by_name
}  // namespace meshtrain::nn
