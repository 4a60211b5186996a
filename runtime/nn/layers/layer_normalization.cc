#include "runtime/nn/layers/normalization.h"

namespace meshtrain::nn {
namespace {

constexpr double kEpsilon = 1e-3;

}  // namespace

void LayerNormalization::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckNormalized(kind(), x); !fits.ok()) return Fail(fits);
  if (Status fits = CheckEpsilon(options_.epsilon.value_or(kEpsilon)); !fits.ok()) {
    return Fail(fits);
  }
  const auto axes = NormalizedAxes(axes_, x);
  if (!axes.ok()) return Fail(axes.status());
  TensorType weight{x.dtype, {}};
  for (const int64_t axis : *axes) weight.dims.push_back(x.dims[axis]);
  if (options_.scale) {
    gamma_ =
        AddParameter("gamma", weight, options_.gamma_initializer,
                     {.layout = options_.gamma_layout, .regularizer = options_.gamma_regularizer});
  }
  if (options_.center) {
    beta_ =
        AddParameter("beta", weight, options_.beta_initializer,
                     {.layout = options_.beta_layout, .regularizer = options_.beta_regularizer});
  }
}

Value LayerNormalization::Call(const Value& x) {
  const auto axes = NormalizedAxes(axes_, x.type());
  if (!axes.ok()) {
    Fail(axes.status());
    return x;
  }
  Value y = Standardized(x, *axes, options_.epsilon.value_or(kEpsilon));
  if (options_.scale) y = y * Along(gamma_, *axes, x.dims());
  return options_.center ? y + Along(beta_, *axes, x.dims()) : y;
}

namespace by_name {

LayerPtr LayerNormalization(const std::string& name, const Options& given) {
  NormalizationOptions options{.name = name};
  ReadNormalization(given, &options);
  return Make<nn::LayerNormalization>(given.Ints("axis").value_or(std::vector<int64_t>{-1}),
                                      std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
