// From the name of an element type to the type.
#pragma once

#include "runtime/mesh/half.h"
#include "runtime/mesh/tensor.h"

namespace meshtrain::mesh {

// f(T{}), T being the type of `dtype`'s elements; what f returns has one type for all.
template <typename F>
decltype(auto) WithElementType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool:
      return f(bool{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(BFloat16{});
    case DType::kF16:
      return f(Float16{});
    case DType::kF64:
      break;
  }
  return f(double{});
}

}  // namespace meshtrain::mesh
