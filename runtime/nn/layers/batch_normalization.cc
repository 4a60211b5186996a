#include "runtime/nn/layers/normalization.h"

namespace meshtrain::nn {
namespace {

constexpr double kEpsilon = 1e-3;

}  // namespace

void BatchNormalization::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  if (Status fits = CheckNormalized(kind(), x); !fits.ok()) return Fail(fits);
  if (Status fits = CheckEpsilon(options_.epsilon.value_or(kEpsilon)); !fits.ok()) {
    return Fail(fits);
  }
  if (!(options_.momentum >= 0 && options_.momentum <= 1)) {
    return Fail(
        InvalidArgument("momentum must be in [0, 1], got: " + std::to_string(options_.momentum)));
  }
  const auto axes = NormalizedAxes({options_.axis}, x);
  if (!axes.ok()) return Fail(axes.status());
  const TensorType channels{x.dtype, {x.dims[axes->front()]}};
  if (options_.scale) {
    gamma_ =
        AddParameter("gamma", channels, options_.gamma_initializer,
                     {.layout = options_.gamma_layout, .regularizer = options_.gamma_regularizer});
  }
  if (options_.center) {
    beta_ =
        AddParameter("beta", channels, options_.beta_initializer,
                     {.layout = options_.beta_layout, .regularizer = options_.beta_regularizer});
  }
  moving_mean_ = AddParameter("moving_mean", channels, options_.moving_mean_initializer,
                              {.layout = options_.moving_mean_layout, .trainable = false});
  moving_variance_ = AddParameter("moving_variance", channels, options_.moving_variance_initializer,
                                  {.layout = options_.moving_variance_layout, .trainable = false});
}

Value BatchNormalization::Call(const Value& x) {
  const auto channels = NormalizedAxes({options_.axis}, x.type());
  if (!channels.ok() || x.dims()[channels->front()] != moving_mean_.dims()[0]) {
    Fail(InvalidArgument("expected " + std::to_string(moving_mean_.dims()[0]) +
                         " channels as before, got: " + x.type().ToString()));
    return x;
  }
  std::vector<int64_t> others;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != channels->front()) others.push_back(d);
  }
  const auto along = [&](const program::Operand& v) { return Along(v, *channels, x.dims()); };
  program::Builder& b = *x.builder();
  const double epsilon = options_.epsilon.value_or(kEpsilon);
  const auto factor_of = [&](const program::Operand& variance) {
    const Value inverse = program::Rsqrt(variance + epsilon);
    return options_.scale ? inverse * gamma_ : inverse;
  };
  // A replica without examples has no figures of its own to learn from.
  if (!context().training || x.type().num_elements() == 0) {
    const Value y = (x - along(b.Read(moving_mean_))) * along(factor_of(b.Read(moving_variance_)));
    return options_.center ? y + along(beta_) : y;
  }
  // The mean's part in the gradient goes by way of `shift`, which is small: the sum of the
  // cotangents times the factor, in place of a pass over x for the sum of their products. In the
  // variance it has none, since x - mean adds up to 0.
  const Value mean = program::ReduceMean(x, others);
  const Value still = program::StopGradient(mean);
  const Value centred = x - along(still);
  const Value variance = program::ReduceMean(program::Square(centred), others);
  const auto move = [&](const Parameter& moving, const Value& batch) {
    program::Assign(moving, b.Read(moving) * options_.momentum + batch * (1 - options_.momentum));
  };
  move(moving_mean_, mean);
  move(moving_variance_, variance);
  const Value factor = factor_of(variance);
  const Value shift = (still - mean) * factor;  // 0
  return centred * along(factor) + along(options_.center ? shift + beta_ : shift);
}

namespace by_name {

LayerPtr BatchNormalization(const std::string& name, const Options& given) {
  BatchNormalizationOptions options;
  options.name = name;
  ReadNormalization(given, &options);
  options.axis = given.Int("axis", options.axis);
  options.momentum = given.Number("momentum", options.momentum);
  options.moving_mean_initializer =
      InitializerOf(given, "moving_mean_initializer", options.moving_mean_initializer);
  options.moving_variance_initializer =
      InitializerOf(given, "moving_variance_initializer", options.moving_variance_initializer);
  options.moving_mean_layout = given.Texts("moving_mean_layout");
  options.moving_variance_layout = given.Texts("moving_variance_layout");
  return Make<nn::BatchNormalization>(std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
