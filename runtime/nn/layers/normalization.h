// What the layers that normalise share. Private to nn/layers.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/nn/by_name.h"
#include "runtime/nn/layers.h"

namespace meshtrain::nn {

// Floats [N, ...] with something to normalise in each example.
inline Status CheckNormalized(std::string_view kind, const TensorType& x) {
  if (x.rank() >= 2 && mesh::IsFloat(x.dtype)) return OkStatus();
  return InvalidArgument(std::string(kind) + " takes floats [N, ...], got: " + x.ToString());
}

inline Status CheckEpsilon(double epsilon) {
  if (epsilon > 0) return OkStatus();
  return InvalidArgument("epsilon must be above 0, got: " + std::to_string(epsilon));
}

// `axes` counted from the front, in order. Errors: none, one that x lacks, one twice, the
// examples'.
inline Result<std::vector<int64_t>> NormalizedAxes(std::vector<int64_t> axes, const TensorType& x) {
  const auto wrong = [&](int64_t axis) {
    return InvalidArgument("axis must name dimensions of " + x.ToString() +
                           " behind the first, each once, got: " + std::to_string(axis));
  };
  for (int64_t& axis : axes) {
    const int64_t given = axis;
    if (axis < 0) axis += x.rank();
    if (axis < 1 || axis >= x.rank()) return wrong(given);
  }
  std::sort(axes.begin(), axes.end());
  if (axes.empty()) return wrong(0);
  if (const auto twice = std::adjacent_find(axes.begin(), axes.end()); twice != axes.end()) {
    return wrong(*twice);
  }
  return axes;
}

// A weight that has the dimensions `axes` of x, as a value that broadcasts over x.
inline Value Along(const program::Operand& weight, const std::vector<int64_t>& axes,
                   const program::Dims& x) {
  program::Dims dims(x.size(), 1);
  for (const int64_t axis : axes) dims[axis] = x[axis];
  // Leading ones are what broadcasting adds by itself.
  dims.erase(dims.begin(), dims.begin() + axes.front());
  if (weight.variable() != nullptr && weight.variable()->dims() == dims) {
    return program::Builder::Of({&weight, 1}).Read(*weight.variable());
  }
  if (weight.value() != nullptr && weight.value()->dims() == dims) return *weight.value();
  return program::Reshape(weight, dims);
}

// (x - mean) / sqrt(variance + epsilon), both over `axes`.
inline Value Standardized(const Value& x, const std::vector<int64_t>& axes, double epsilon) {
  const Value centred = x - program::ReduceMean(x, axes, /*keep_dims=*/true);
  const Value variance = program::ReduceMean(program::Square(centred), axes, /*keep_dims=*/true);
  return centred * program::Rsqrt(variance + epsilon);
}

namespace by_name {

// Options of every layer that centres and scales.
inline void ReadNormalization(const Options& given, NormalizationOptions* options) {
  if (given.Find("epsilon") != nullptr) options->epsilon = given.Number("epsilon", 0);
  options->center = given.Bool("center", options->center);
  options->scale = given.Bool("scale", options->scale);
  options->beta_initializer = InitializerOf(given, "beta_initializer", options->beta_initializer);
  options->gamma_initializer =
      InitializerOf(given, "gamma_initializer", options->gamma_initializer);
  options->beta_regularizer = RegularizerOf(given, "beta_regularizer");
  options->gamma_regularizer = RegularizerOf(given, "gamma_regularizer");
  options->beta_layout = given.Texts("beta_layout");
  options->gamma_layout = given.Texts("gamma_layout");
}

}  // namespace by_name
}  // namespace meshtrain::nn
