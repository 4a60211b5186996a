#include <cmath>

#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {
namespace {

// What a score becomes that a mask hides: e to it is 0 beside any other, and no difference of two
// scores is infinite, so a row of hidden scores alone is no NaN either.
double HiddenOf(program::DType dtype) {
  return dtype == program::DType::kF16 ? -65504.0 : -1e30;  // the least f16
}

}  // namespace

MultiHeadAttention::Projection MultiHeadAttention::MakeProjection(
    std::string_view name, program::DType dtype, int64_t in, int64_t out, bool heads_first,
    const std::optional<LayoutSpecs>& kernel_layout,
    const std::optional<LayoutSpecs>& bias_layout) {
  // Between a key/value head and the heads that it serves nothing may be cut.
  const std::string what = groups_ == heads_ ? "heads" : "key/value heads";
  const int64_t rows = heads_first ? groups_ : 0, columns = heads_first ? 0 : groups_;
  Projection made;
  made.kernel =
      AddParameter(std::string(name) + ".kernel", {dtype, {in, out}}, options_.kernel_initializer,
                   {.layout = kernel_layout,
                    .regularizer = options_.kernel_regularizer,
                    .blocks = {what, {rows, columns}}});
  if (!options_.use_bias) return made;
  made.bias = AddParameter(std::string(name) + ".bias", {dtype, {out}}, options_.bias_initializer,
                           {.layout = bias_layout,
                            .regularizer = options_.bias_regularizer,
                            .blocks = {what, {columns}}});
  return made;
}

void MultiHeadAttention::Build(std::span<const TensorType> inputs) {
  const TensorType& x = inputs[0];
  const auto wrong = [this](std::string what) { Fail(InvalidArgument(std::move(what))); };
  if (x.rank() != 3 || !mesh::IsFloat(x.dtype)) {
    return wrong("multi_head_attention takes floats [N, T, D], got: " + x.ToString());
  }
  const int64_t features = x.dims[2];
  if (heads_ < 1) return wrong("num_heads must be at least 1, got: " + std::to_string(heads_));
  groups_ = options_.key_value_heads == 0 ? heads_ : options_.key_value_heads;
  if (groups_ < 1 || heads_ % groups_ != 0) {
    return wrong("num_key_value_heads must divide num_heads, " + std::to_string(heads_) +
                 ", got: " + std::to_string(groups_));
  }
  key_dim_ = options_.key_dim;
  if (key_dim_ == 0 && features % heads_ != 0) {
    return wrong("without key_dim num_heads must divide the " + std::to_string(features) +
                 " features, got: " + std::to_string(heads_));
  }
  if (key_dim_ == 0) key_dim_ = features / heads_;
  if (key_dim_ < 1) return wrong("key_dim must be at least 1, got: " + std::to_string(key_dim_));
  if (options_.rope_max_wavelength) {
    if (key_dim_ % 2 != 0) {
      return wrong("rotary positions turn pairs: expected an even key_dim, got: " +
                   std::to_string(key_dim_));
    }
    if (!(*options_.rope_max_wavelength > 0)) {
      return wrong("rope_max_wavelength must be above 0, got: " +
                   std::to_string(*options_.rope_max_wavelength));
    }
  }
  if (!(options_.dropout >= 0 && options_.dropout < 1)) {
    return wrong("dropout must be in [0, 1), got: " + std::to_string(options_.dropout));
  }
  const int64_t wide = heads_ * key_dim_, narrow = groups_ * key_dim_;
  query_ = MakeProjection("query", x.dtype, features, wide, false, options_.query_kernel_layout,
                          options_.query_bias_layout);
  key_ = MakeProjection("key", x.dtype, features, narrow, false, options_.key_kernel_layout,
                        options_.key_bias_layout);
  value_ = MakeProjection("value", x.dtype, features, narrow, false, options_.value_kernel_layout,
                          options_.value_bias_layout);
  output_ = MakeProjection("output", x.dtype, wide, features, true, options_.output_kernel_layout,
                           options_.output_bias_layout);
}

Value MultiHeadAttention::Project(const Value& x, const Projection& projection) const {
  const Value y = program::MatMul(x, projection.kernel);
  return options_.use_bias ? y + projection.bias : y;
}

// x [N, T, ..., K], element i of the first half of K and element i of the second turned together by
// position * wavelength^(-2 i / K). Angles have many digits of 16 bits before the point: they are
// f32.
Value MultiHeadAttention::Turned(const Value& x) const {
  if (!options_.rope_max_wavelength) return x;
  const program::DType dtype = x.dtype();
  const program::DType wide = mesh::IsHalf(dtype) ? program::DType::kF32 : dtype;
  const int64_t length = x.dims()[1], half = x.dims().back() / 2;
  const Value positions =
      context().writing != nullptr
          ? program::Cast(program::Reshape(context().writing->position, {1, 1}), wide)
          : program::Iota({length, 1}, 0, wide);
  const Value pairs = program::Iota({1, half}, 1, wide);
  const double step = -std::log(*options_.rope_max_wavelength) / static_cast<double>(half);
  program::Dims dims(static_cast<size_t>(x.rank()) - 1, 1);  // without N
  dims.front() = length;
  dims.back() = half;
  const Value angles = program::Reshape(positions * program::Exp(pairs * step), dims);
  const auto narrow = [dtype](const Value& v) {
    return v.dtype() == dtype ? v : program::Cast(v, dtype);
  };
  const Value cosines = narrow(program::Cos(angles)), sines = narrow(program::Sin(angles));
  const std::vector<Value> parts = program::Split(x, {half, half}, -1);
  return program::Concat(
      {parts[0] * cosines - parts[1] * sines, parts[1] * cosines + parts[0] * sines}, -1);
}

// Scores [N, groups, Q * heads of a group, T] as weights: masked, each row's sum 1, dropped out. Of
// Q = T queries; of one, where a text is written. `mask` [N, T]: null without one. A row of which
// it leaves nothing is 0.
Value MultiHeadAttention::Weigh(const Value& scores, const Value* mask) const {
  const int64_t share = heads_ / groups_, length = scores.dims().back();
  const double hidden = HiddenOf(scores.dtype());
  Value y = scores, seen;
  const bool looks_back = context().writing == nullptr && options_.causal;
  if (looks_back) {
    seen = program::GreaterEqual(program::Iota({length, length}, 0, program::DType::kI32),
                                 program::Iota({length, length}, 1, program::DType::kI32));
  }
  // Where it looks back, queries and the heads of a group are told apart.
  const bool apart = looks_back && share > 1;
  if (apart) seen = program::Reshape(seen, {length, 1, length});
  if (mask != nullptr) {
    const Value keys =
        mask->dtype() == program::DType::kBool ? *mask : program::NotEqual(*mask, 0.0);
    program::Dims dims(apart ? 5 : 4, 1);
    dims.front() = mask->dims()[0];
    dims.back() = length;
    const Value all = program::Reshape(keys, dims);
    seen = looks_back ? program::LogicalAnd(seen, all) : all;
  }
  const auto hide = [&](const Value& v, double with) {
    if (!apart) return program::Select(seen, v, with);
    const program::Dims dims = {v.dims()[0], groups_, length, share, length};
    return program::Reshape(program::Select(seen, program::Reshape(v, dims), with), v.dims());
  };
  if (context().writing != nullptr) {
    const Value before =
        program::GreaterEqual(context().writing->position, program::Iota({length}, 0));
    y = program::Select(before, y, hidden);
  } else if (looks_back || mask != nullptr) {
    y = hide(y, hidden);
  }
  y = program::Softmax(y);
  if (mask != nullptr) y = hide(y, 0);
  if (!context().training || options_.dropout == 0) return y;
  return program::Dropout(y, options_.dropout, options_.seed.value_or(context().seed),
                          *context().step);
}

Value MultiHeadAttention::CallMany(std::span<const Value> inputs) {
  const Value& x = inputs[0];
  const Value* const mask = inputs.size() > 1 ? &inputs[1] : nullptr;
  if (inputs.size() > 2) {
    Fail(InvalidArgument(
        "takes a sequence and perhaps a mask, got: " + std::to_string(inputs.size()) + " inputs"));
    return x;
  }
  if (context().training && options_.dropout > 0 && !context().step) {
    Fail(InvalidArgument("dropout in training needs a step counter (CallContext::step)"));
    return x;
  }
  if (x.rank() != 3) {
    Fail(InvalidArgument("multi_head_attention takes floats [N, T, D], got: " +
                         x.type().ToString()));
    return x;
  }
  const int64_t batch = x.dims()[0], length = x.dims()[1];
  if (mask != nullptr && mask->dims() != program::Dims{batch, length}) {
    Fail(InvalidArgument("mask: expected [" + std::to_string(batch) + "," + std::to_string(length) +
                         "], one for each position, got: " + mask->type().ToString()));
    return x;
  }
  if (mask != nullptr && context().writing != nullptr) {
    Fail(InvalidArgument("mask: expected none where a text is written, got: " +
                         mask->type().ToString()));
    return x;
  }
  const int64_t share = heads_ / groups_;
  // [N, T, heads * K] -> [N, groups, T * share, K]: the heads that a group's keys serve, position
  // by position, are rows of one product. T stands before them, so it may be split.
  const auto rows = [&](const Value& v, int64_t each) {
    if (each == 1) return program::Transpose(v, {0, 2, 1, 3});
    return program::Reshape(program::Transpose(v, {0, 2, 1, 3, 4}),
                            {batch, groups_, length * each, key_dim_});
  };
  const program::Dims of_keys = {batch, length, groups_, key_dim_};
  const program::Dims of_queries =
      share == 1 ? of_keys : program::Dims{batch, length, groups_, share, key_dim_};
  // Scaled beside the bias, in one pass: scores are linear in the queries.
  const double scale = 1 / std::sqrt(static_cast<double>(key_dim_));
  const Value query = Turned(program::Reshape(Project(x, query_) * scale, of_queries));
  Value key = Turned(program::Reshape(Project(x, key_), of_keys));
  Value value = program::Reshape(Project(x, value_), of_keys);
  if (context().writing != nullptr) {
    key = Keep("kept_keys", key);
    value = Keep("kept_values", value);
  }
  const Value scores = program::MatMul(rows(query, share), rows(key, 1), false, true);
  const Value sums = program::MatMul(Weigh(scores, mask), rows(value, 1));
  // ... and back.
  const Value apart =
      share == 1
          ? program::Transpose(sums, {0, 2, 1, 3})
          : program::Transpose(program::Reshape(sums, {batch, groups_, length, share, key_dim_}),
                               {0, 2, 1, 3, 4});
  return Project(program::Reshape(apart, {batch, length, heads_ * key_dim_}), output_);
}

namespace by_name {

LayerPtr MultiHeadAttention(const std::string& name, const Options& given) {
  AttentionOptions options{.name = name};
  options.key_value_heads = given.Int("num_key_value_heads", 0);
  options.key_dim = given.Int("key_dim", 0);
  options.causal = given.Bool("use_causal_mask", options.causal);
  options.rope_max_wavelength = given.MaybeNumber("rope_max_wavelength");
  options.dropout = given.Number("dropout", options.dropout);
  options.seed = given.MaybeInt("seed");
  options.use_bias = given.Bool("use_bias", options.use_bias);
  options.kernel_initializer =
      InitializerOf(given, "kernel_initializer", options.kernel_initializer);
  options.bias_initializer = InitializerOf(given, "bias_initializer", options.bias_initializer);
  options.kernel_regularizer = RegularizerOf(given, "kernel_regularizer");
  options.bias_regularizer = RegularizerOf(given, "bias_regularizer");
  options.query_kernel_layout = given.Texts("query_kernel_layout");
  options.query_bias_layout = given.Texts("query_bias_layout");
  options.key_kernel_layout = given.Texts("key_kernel_layout");
  options.key_bias_layout = given.Texts("key_bias_layout");
  options.value_kernel_layout = given.Texts("value_kernel_layout");
  options.value_bias_layout = given.Texts("value_bias_layout");
  options.output_kernel_layout = given.Texts("output_kernel_layout");
  options.output_bias_layout = given.Texts("output_bias_layout");
  return Make<nn::MultiHeadAttention>(given.Int("num_heads", 1), std::move(options));
}

}  // namespace by_name
}  // namespace meshtrain::nn
