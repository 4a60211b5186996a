// What the interpreter's files share. Private to tests/support/interpreter*.cc.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::testing::interpreter {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Attrs;
using program::Op;
using Operands = std::vector<const Array*>;

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kUnknown = std::numeric_limits<double>::infinity();

inline int64_t Position(const Dims& index, const Dims& dims) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + index[d];
  return at;
}

// Calls f(index, position) for every index of `dims` in row-major order.
template <typename F>
void ForEach(const Dims& dims, const F& f) {
  const int64_t n = mesh::NumElements(dims);
  Dims index(dims.size(), 0);
  for (int64_t i = 0; i < n; ++i) {
    f(index, i);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
}

// Calls f(position, positions[]) for every index of `dims`; `steps[i][d]` is how far operand i
// moves when dimension d does.
template <typename F>
void Walk(const Dims& dims, const std::vector<Dims>& steps, const F& f) {
  const int64_t n = mesh::NumElements(dims);
  Dims index(dims.size(), 0);
  std::array<int64_t, 4> at{};
  for (int64_t i = 0; i < n; ++i) {
    f(i, at.data());
    for (size_t d = dims.size(); d-- > 0;) {
      for (size_t k = 0; k < steps.size(); ++k) at[k] += steps[k][d];
      if (++index[d] < dims[d]) break;
      for (size_t k = 0; k < steps.size(); ++k) at[k] -= steps[k][d] * dims[d];
      index[d] = 0;
    }
  }
}
// The steps of an operand that is broadcast to `dims`.
Dims BroadcastSteps(const Dims& operand, const Dims& dims);

// Half the distance between 1 and the next number of the type.
double UnitOf(DType dtype);
// What adding n numbers may round, in halves of an ulp of the sum of their sizes: what
// docs/numerics.md promises of reductions, and one for each of up to 16 devices.
double SumUnits(DType dtype, int64_t n);
// Whether a ByAPlugin lives.
bool IsByAPlugin();
// Numbers above it are infinite in the type.
double LargestOf(DType dtype);
// The largest power of two of which every element is a multiple; 0 where an element is not finite.
double GridOf(const std::vector<Number>& values);
// Sums of multiples of `grid`, of which the sizes add up to `mass`, are numbers of the type, in
// whatever order they are added.
bool OnGrid(DType dtype, double grid, double mass);

// Of how many parts on as many devices a sum of `terms` may be, each of them a sum of `parts`.
int64_t PartsOf(int64_t parts, int64_t terms);

// Gives a result the vectors of a bounded one: no error, no mass.
void StartBounds(Array& out);
// The last word on element i: what is not finite, or too large for the type, is unknown; a mass is
// never below what it bounds.
void CloseBound(Array& out, size_t i);
// Adds to element i what `units` half ulps of `size` are, and one for each addition of its parts
// (out.parts) that may come after this op; nothing where its parts are exact.
void AddRounding(Array& out, size_t i, double units, double size, bool operands_exact);

// Element i of the result is element from[i] of `x`, or `fill` where that is -1.
Array Moved(const Array& x, const TensorType& type, const std::vector<int64_t>& from, Number fill,
            Keep keep);

// The place of the device among the shards along the op's `axes`.
int64_t ShardAlong(const Op& op, const Standpoint& here);

// --- families; nullopt: the op is of another one

std::optional<Array> Elementwise(const Op& op, const Operands& x, const TensorType& type,
                                 Keep keep);
std::optional<Array> Classes(const Op& op, const Operands& x, const TensorType& type, Keep keep);
std::optional<Array> Sources(const Op& op, const Operands& x, const TensorType& type,
                             const Standpoint& here);

std::optional<Array> ByNumbers(const Op& op, const Operands& x, const TensorType& type,
                               const Standpoint& here);
std::optional<Array> InOrder(const Op& op, const Operands& x, const TensorType& type, Keep keep);
std::optional<Array> OfWindows(const Op& op, const Operands& x, const TensorType& type, Keep keep);

}  // namespace meshtrain::testing::interpreter
