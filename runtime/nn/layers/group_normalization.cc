#include "runtime/nn/layers/normalization.h"

namespace meshtrain::nn {
namespace {

constexpr double kEpsilon = 1e-3;

}  // namespace

void GroupNormalization::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckNormalized(kind(), x); !fits.ok()) return Fail(fits);
  if (Status fits = CheckEpsilon(options_.epsilon.value_or(kEpsilon)); !fits.ok()) {
    return Fail(fits);
  }
  const int64_t channels = x.dims.back();
  if (groups_ != -1 && (groups_ < 1 || channels % groups_ != 0)) {
    return Fail(
        InvalidArgument("groups must divide the " + std::to_string(channels) +
                        " channels of the input, or be -1, got: " + std::to_string(groups_)));
  }
  if (options_.scale) {
    gamma_ =
        AddParameter("gamma", {x.dtype, {channels}}, options_.gamma_initializer,
                     {.layout = options_.gamma_layout, .regularizer = options_.gamma_regularizer});
  }
  if (options_.center) {
    beta_ =
        AddParameter("beta", {x.dtype, {channels}}, options_.beta_initializer,
                     {.layout = options_.beta_layout, .regularizer = options_.beta_regularizer});
  }
}

Value GroupNormalization::Call(const Value& x) {
  const program::Dims dims = x.dims();
  const int64_t groups = groups_ == -1 ? dims.back() : groups_;
  program::Dims grouped = dims;
  grouped.back() = groups;
  grouped.push_back(dims.back() / groups);
  std::vector<int64_t> axes;
  for (size_t d = 1; d < grouped.size(); ++d) {
    if (d + 2 != grouped.size()) axes.push_back(static_cast<int64_t>(d));
  }
  Value y = Standardized(program::Reshape(x, grouped), axes, options_.epsilon.value_or(kEpsilon));
  y = program::Reshape(y, dims);
  if (options_.scale) y = y * gamma_;
  return options_.center ? y + beta_ : y;
}

namespace by_name {

LayerPtr GroupNormalization(const std::string& name, const Options& given) {
  NormalizationOptions options{.name = name};
  ReadNormalization(given, &options);
  return Make<nn::GroupNormalization>(given.Int("groups", 32), std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
