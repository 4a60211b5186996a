#include "runtime/nn/layers/normalization.h"

namespace meshtrain::nn {
namespace {

constexpr double kEpsilon = 1e-6;

}  // namespace

void RmsNormalization::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckNormalized(kind(), x); !fits.ok()) return Fail(fits);
  if (Status fits = CheckEpsilon(options_.epsilon.value_or(kEpsilon)); !fits.ok()) {
    return Fail(fits);
  }
  const auto axes = NormalizedAxes(axes_, x);
  if (!axes.ok()) return Fail(axes.status());
  TensorType weight{x.dtype, {}};
  for (const int64_t axis : *axes) weight.dims.push_back(x.dims[axis]);
  scale_ =
      AddParameter("scale", weight, options_.gamma_initializer,
                   {.layout = options_.gamma_layout, .regularizer = options_.gamma_regularizer});
}

Value RmsNormalization::Call(const Value& x) {
  const auto axes = NormalizedAxes(axes_, x.type());
  if (!axes.ok()) {
    Fail(axes.status());
    return x;
  }
  const Value mean = program::ReduceMean(program::Square(x), *axes, /*keep_dims=*/true);
  return x * program::Rsqrt(mean + options_.epsilon.value_or(kEpsilon)) *
         Along(scale_, *axes, x.dims());
}

namespace by_name {

LayerPtr RmsNormalization(const std::string& name, const Options& given) {
  NormalizationOptions options{.name = name};
  ReadNormalization(given, &options);
  options.gamma_layout = given.Texts("scale_layout");
  return Make<nn::RmsNormalization>(given.Ints("axis").value_or(std::vector<int64_t>{-1}),
                                    std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
