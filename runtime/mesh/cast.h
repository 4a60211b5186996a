// From one element type to another.
#pragma once

#include "runtime/mesh/tensor.h"

namespace meshtrain::mesh {

// The nearest numbers of `to`. From floats to whole numbers: towards zero, and to the type's ends;
// a NaN is 0. Whole numbers beyond the type's ends are those. The same tensor where it is of `to`.
Tensor CastTensor(const Tensor& x, DType to);

}  // namespace meshtrain::mesh
