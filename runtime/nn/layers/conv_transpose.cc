#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/layers/windows.h"

namespace meshtrain::nn {

std::string_view ConvTranspose::kind() const {
  return spatial_ == 1   ? "conv_1d_transpose"
         : spatial_ == 2 ? "conv_2d_transpose"
                         : "conv_3d_transpose";
}

void ConvTranspose::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckConv(kind(), x, spatial_, kernel_size_, options_, filters_); !fits.ok()) {
    return Fail(fits);
  }
  program::Dims dims = ForEachSpatial(kernel_size_, spatial_);
  dims.push_back(filters_);
  dims.push_back(x.dims.back());
  kernel_ =
      AddParameter("kernel", {x.dtype, dims}, options_.kernel_initializer,
                   {.layout = options_.kernel_layout, .regularizer = options_.kernel_regularizer});
  if (!options_.use_bias) return;
  bias_ = AddParameter("bias", {x.dtype, {filters_}}, options_.bias_initializer,
                       {.layout = options_.bias_layout, .regularizer = options_.bias_regularizer});
}

Value ConvTranspose::Call(const Value& x) {
  const program::Dims sizes = ForEachSpatial(kernel_size_, spatial_);
  program::Windows windows = WindowsOf(options_, spatial_);
  program::Dims over;
  for (int d = 0; d < spatial_; ++d) {
    const int64_t reach = (sizes[d] - 1) * windows.dilations[d] + 1;
    const int64_t more = options_.same ? 0 : std::max<int64_t>(0, reach - windows.strides[d]);
    over.push_back(x.dims()[d + 1] * windows.strides[d] + more);
  }
  windows = program::WithPadding(std::move(windows), over, sizes);
  program::Dims dims = over;
  dims.insert(dims.begin(), x.dims().front());
  dims.push_back(filters_);
  Value y = x.builder()->Append1("conv_input_grad", {x, kernel_},
                                 {{"strides", windows.strides},
                                  {"dilations", windows.dilations},
                                  {"low", windows.low},
                                  {"high", windows.high},
                                  {"dims", dims}});
  if (options_.use_bias) y = y + bias_;
  return Activate(y, options_.activation);
}

namespace by_name {
namespace {

LayerPtr Of(int spatial, const std::string& name, const Options& given) {
  return Make<nn::ConvTranspose>(spatial, given.Int("filters", 1),
                                 given.Ints("kernel_size").value_or(Sizes{1}),
                                 ReadConvOptions(name, given));
}

}  // namespace

LayerPtr Conv1dTranspose(const std::string& name, const Options& o) { return Of(1, name, o); }
LayerPtr Conv2dTranspose(const std::string& name, const Options& o) { return Of(2, name, o); }
LayerPtr Conv3dTranspose(const std::string& name, const Options& o) { return Of(3, name, o); }

}  // namespace by_name
}  // namespace meshtrain::nn
