// Element types, dimensions and their text: `f32[8,16]`, `i64[]`. Pure values.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::mesh {

enum class DType : uint8_t { kBool, kU8, kI32, kI64, kF32, kF64, kBF16, kF16 };
inline constexpr DType kAllDTypes[] = {DType::kBool, DType::kU8,  DType::kI32,  DType::kI64,
                                       DType::kF32,  DType::kF64, DType::kBF16, DType::kF16};

// "bool", "u8", "i32", "i64", "f32", "f64", "bf16", "f16".
std::string_view DTypeName(DType dtype);
Result<DType> ParseDType(std::string_view name);
int64_t DTypeBytes(DType dtype);
// A whole number that stands in a double; from 2^63 on the largest that there is.
inline int64_t ToI64(double number) {
  return number >= 0x1p63 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(number);
}
inline bool IsHalf(DType t) { return t == DType::kBF16 || t == DType::kF16; }
inline bool IsFloat(DType t) { return t == DType::kF32 || t == DType::kF64 || IsHalf(t); }
// Of floating-point types: the largest finite number, and the most that rounding to nearest changes
// a number by, as a part of it.
double LargestFinite(DType dtype);
double UnitRoundoff(DType dtype);

using Dims = std::vector<int64_t>;

// The product of the dimensions; 1 for a scalar, 0 when a dimension is 0.
int64_t NumElements(const Dims& dims);
// Row-major element strides.
Dims Strides(const Dims& dims);

// A dense row-major tensor's type. Kept true by whoever makes one: no dimension is negative.
struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t num_elements() const { return NumElements(dims); }
  int64_t num_bytes() const { return num_elements() * DTypeBytes(dtype); }
  std::string ToString() const;  // "f32[8,16]"
  static Result<TensorType> Parse(std::string_view text);

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

}  // namespace meshtrain::mesh
