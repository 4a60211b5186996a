// The 16-bit floating-point types as elements of tensors (half_bits.h has the formats). They are
// stored and moved; arithmetic is that of f32, to which they turn by themselves, exactly. Back they
// come with a constructor, rounded once from any number.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/mesh/half_bits.h"

namespace meshtrain::mesh {

struct BFloat16;
struct Float16;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
template <typename T>
inline constexpr bool kIsFloatType = std::is_floating_point_v<T> || kIsHalf<T>;

// The f32 of which one more rounding gives the half that is nearest to `number`.
template <typename T>
float BeforeHalf(T number) {
  if constexpr (kIsHalf<T> || std::is_same_v<T, float>) {
    return number;
  } else if constexpr (std::is_floating_point_v<T>) {
    return OddFloat(static_cast<double>(number));
  } else {
    return OddFloat(static_cast<int64_t>(number));
  }
}

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  template <typename T>
  requires(std::is_arithmetic_v<T> || kIsHalf<T>) explicit BFloat16(T number)
      : bits(Bf16OfFloat(BeforeHalf(number))) {}
  operator float() const { return FloatOfBf16(bits); }  // NOLINT: implicit, as float to double
};

struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  template <typename T>
  requires(std::is_arithmetic_v<T> || kIsHalf<T>) explicit Float16(T number)
      : bits(F16OfFloat(BeforeHalf(number))) {}
  operator float() const { return FloatOfF16(bits); }  // NOLINT: implicit
};

}  // namespace meshtrain::mesh
