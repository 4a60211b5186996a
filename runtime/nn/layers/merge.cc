#include <array>

#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {
namespace {

Value Merged(MergeKind kind, const Value& a, const Value& b) {
  switch (kind) {
    case MergeKind::kAdd:
    case MergeKind::kAverage:
      return a + b;
    case MergeKind::kSubtract:
      return a - b;
    case MergeKind::kMultiply:
      return a * b;
    case MergeKind::kMaximum:
      return program::Maximum(a, b);
    case MergeKind::kMinimum:
      return program::Minimum(a, b);
  }
  return a;
}

}  // namespace

std::string_view Merge::kind() const {
  constexpr std::array<std::string_view, 6> kNames = {"add",     "subtract", "multiply",
                                                      "average", "maximum",  "minimum"};
  return kNames[static_cast<size_t>(merge_)];
}

Value Merge::CallMany(std::span<const Value> inputs) {
  if (merge_ == MergeKind::kSubtract && inputs.size() != 2) {
    Fail(InvalidArgument("subtract takes two inputs, got: " + std::to_string(inputs.size())));
    return inputs[0];
  }
  Value all = inputs[0];
  for (const Value& input : inputs.subspan(1)) {
    if (input.type() != inputs[0].type()) {
      Fail(InvalidArgument(std::string(kind()) + " takes inputs of one type, got: " +
                           inputs[0].type().ToString() + " and " + input.type().ToString()));
      return all;
    }
    all = Merged(merge_, all, input);
  }
  return merge_ == MergeKind::kAverage ? all / static_cast<double>(inputs.size()) : all;
}

namespace by_name {

LayerPtr Add(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kAdd, name);
}
LayerPtr Subtract(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kSubtract, name);
}
LayerPtr Multiply(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kMultiply, name);
}
LayerPtr Average(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kAverage, name);
}
LayerPtr Maximum(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kMaximum, name);
}
LayerPtr Minimum(const std::string& name, const Options&) {
  return Make<nn::Merge>(MergeKind::kMinimum, name);
}

}  // namespace by_name
}  // namespace meshtrain::nn
