// Element-wise reductions of two operands, for every communicator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/mesh/layout.h"

namespace meshtrain::collective {

// to[i] = left[i] (op) right[i] for n elements. `to` may be `left` or `right`; otherwise they do
// not overlap. Max and min keep a NaN, whichever side it is on.
using ReduceFn = void (*)(std::byte* to, const std::byte* left, const std::byte* right, int64_t n);

// Null where the reduction means nothing (a sum of bools).
ReduceFn FindReduce(mesh::DType dtype, mesh::Reduction reduction);

// The same numbers, and of two NaNs always the left one's bits: for algorithms where several
// processes compute one sum, each for itself. (Which operand's NaN a plain addition keeps is the
// compiler's choice.)
ReduceFn FindOrderedReduce(mesh::DType dtype, mesh::Reduction reduction);

struct Reducing {
  int64_t width = 1;  // bytes of an element
  ReduceFn reduce = nullptr;
  ReduceFn ordered = nullptr;  // FindOrderedReduce
  bool ring = false;           // between hosts, however few the bytes
};

}  // namespace meshtrain::collective
