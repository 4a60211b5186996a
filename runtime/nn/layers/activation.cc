#include <array>
#include <utility>

#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {
namespace {

constexpr std::array<std::pair<std::string_view, ActivationKind>, 11> kActivations = {{
    {"linear", ActivationKind::kLinear},
    {"relu", ActivationKind::kRelu},
    {"gelu", ActivationKind::kGelu},
    {"sigmoid", ActivationKind::kSigmoid},
    {"tanh", ActivationKind::kTanh},
    {"softmax", ActivationKind::kSoftmax},
    {"gelu_tanh", ActivationKind::kGeluTanh},
    {"silu", ActivationKind::kSilu},
    {"elu", ActivationKind::kElu},
    {"leaky_relu", ActivationKind::kLeakyRelu},
    {"softplus", ActivationKind::kSoftplus},
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
  // A probability of 16 bits is 1 where it should be a little less: its layer rounds it, and what
  // gives the model's predictions is not rounded at all (train/prediction.cc).
  const bool probability = kind == ActivationKind::kSigmoid || kind == ActivationKind::kSoftmax;
  if (probability && mesh::IsHalf(x.dtype()) && CallContext::Current().compute) {
    return Activate(program::Cast(x, program::DType::kF32), kind);
  }
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
    case ActivationKind::kGeluTanh:
      return program::Gelu(x, /*approximate=*/true);
    case ActivationKind::kSilu:
      return program::Silu(x);
    case ActivationKind::kElu:
      return program::Elu(x);
    case ActivationKind::kLeakyRelu:
      return program::LeakyRelu(x);
    case ActivationKind::kSoftplus:
      return program::Softplus(x);
  }
  return x;
}

ActivationKind ActivationOf(const Options& options) {
  return ParseActivation(options.Text("activation")).value_or(ActivationKind::kLinear);
}

namespace by_name {

LayerPtr Activation(const std::string& name, const Options& options) {
  return Make<nn::Activation>(ActivationOf(options), name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
