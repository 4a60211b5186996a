#include "runtime/nn/layers.h"

#include <array>
#include <utility>

namespace meshtrain::nn {
namespace {

constexpr std::array<std::pair<std::string_view, ActivationKind>, 6> kActivations = {{
    {"linear", ActivationKind::kLinear},
    {"relu", ActivationKind::kRelu},
    {"gelu", ActivationKind::kGelu},
    {"sigmoid", ActivationKind::kSigmoid},
    {"tanh", ActivationKind::kTanh},
    {"softmax", ActivationKind::kSoftmax},
}};

}  // namespace

std::string_view ActivationName(ActivationKind kind) {
  return kActivations[static_cast<size_t>(kind)].first;
}

const std::vector<std::string>& ActivationNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, kind] : kActivations) all.emplace_back(name);
    return all;
  }();
  return names;
}

std::optional<ActivationKind> ParseActivation(std::string_view name) {
  for (const auto& [known, kind] : kActivations) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

Value Activate(const Value& x, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kLinear:
      return x;
    case ActivationKind::kRelu:
      return program::Relu(x);
    case ActivationKind::kGelu:
      return program::Gelu(x);
    case ActivationKind::kSigmoid:
      return program::Sigmoid(x);
    case ActivationKind::kTanh:
      return program::Tanh(x);
    case ActivationKind::kSoftmax:
      return program::Softmax(x);
  }
  return x;
}

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
  // A product of matrices, whatever comes before the features: [N, T, in] -> [N * T, in] -> [N, T,
  // units].
  const program::Dims dims = x.dims();
  const bool flat = dims.size() > 2;
  Value y = program::MatMul(flat ? program::Reshape(x, {-1, dims.back()}) : x, kernel_);
  if (options_.use_bias) y = y + bias_;
  if (flat) {
    program::Dims out = dims;
    out.back() = units_;
    y = program::Reshape(y, out);
  }
  return Activate(y, options_.activation);
}

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

Value Reshape::Call(const Value& x) {
  const program::Dims dims = x.dims();
  if (dims.empty()) {
    Fail(InvalidArgument("reshape takes [N, ...], got: " + x.type().ToString()));
    return x;
  }
  program::Dims out = dims_;
  out.insert(out.begin(), dims[0]);
  return program::Reshape(x, out);
}

Value Dropout::Call(const Value& x) {
  if (!(rate_ >= 0 && rate_ < 1)) {
    Fail(InvalidArgument("rate must be in [0, 1), got: " + std::to_string(rate_)));
    return x;
  }
  if (!context().training || rate_ == 0) return x;
  if (!context().step) {
    Fail(InvalidArgument("dropout in training needs a step counter (CallContext::step)"));
    return x;
  }
  return program::Dropout(x, rate_, seed_.value_or(context().seed), *context().step);
}

Value Add::CallMany(std::span<const Value> inputs) {
  Value sum = inputs[0];
  for (const Value& input : inputs.subspan(1)) {
    if (input.type() != inputs[0].type()) {
      Fail(InvalidArgument("add takes inputs of one type, got: " + inputs[0].type().ToString() +
                           " and " + input.type().ToString()));
      return sum;
    }
    sum = sum + input;
  }
  return sum;
}

Value Concatenate::CallMany(std::span<const Value> inputs) {
  const int64_t rank = inputs[0].rank();
  const int64_t axis = axis_ < 0 ? axis_ + rank : axis_;
  if (axis < 0 || axis >= rank) {
    Fail(InvalidArgument("axis " + std::to_string(axis_) + " is not one of " +
                         inputs[0].type().ToString()));
    return inputs[0];
  }
  std::vector<program::Operand> parts(inputs.begin(), inputs.end());
  return program::Concat(parts, axis);
}

}  // namespace meshtrain::nn
