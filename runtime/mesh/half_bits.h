// The bits of 16-bit floats. bf16: sign, 8 bits of exponent, 7 of fraction, the upper half of an
// f32. f16: sign, 5 and 10 (IEEE 754 binary16). To 16 bits a number is rounded once, to nearest,
// ties to even; what is too large becomes infinity, a NaN stays one.
//
// Kept true: nothing here is shared between object files (static, no templates), so that the
// kernels of each instruction set have a copy of their own (device/cpu/kernels.h).
#pragma once

#include <cstdint>

namespace meshtrain::mesh {

[[maybe_unused]] static inline float FloatOfBf16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

[[maybe_unused]] static inline uint16_t Bf16OfFloat(float number) {
  const auto bits = __builtin_bit_cast(uint32_t, number);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(number != number ? bits >> 16 | 0x40 : rounded);
}

[[maybe_unused]] static inline float FloatOfF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = bits & 0x7fff;
  // With an f32's bias the exponent is 112 too low; the product mends that, of denormals as well.
  const float scaled = __builtin_bit_cast(float, rest << 13) * 0x1p112f;
  const uint32_t special = rest >= 0x7c00 ? 0x7f800000 : 0;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, scaled) | special | sign);
}

[[maybe_unused]] static inline uint16_t F16OfFloat(float number) {
  const auto bits = __builtin_bit_cast(uint32_t, number);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  // Beside a half, whose last bit is worth 2^-24 as a denormal's is, the sum rounds.
  const float beside = __builtin_bit_cast(float, rest) + 0.5F;
  const uint32_t denormal = __builtin_bit_cast(uint32_t, beside) - 0x3f000000;
  const uint32_t normal = (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13;
  uint32_t out = rest < 0x38800000 ? denormal : normal;
  out = rest >= 0x47800000 ? 0x7c00 : out;
  out = rest > 0x7f800000 ? 0x7e00 : out;
  return static_cast<uint16_t>(out | sign);
}

// An f32 from which a further rounding to 16 bits gives what one rounding of `number` would: what
// is cut off leaves the last bit set (rounding to odd; Boldo and Melquiond, 2008).
[[maybe_unused]] static inline float OddFloat(double number) {
  const auto narrow = static_cast<float>(number);
  const double back = narrow;
  auto bits = __builtin_bit_cast(uint32_t, narrow);
  // Rounded away from zero: one step back, which is to be odd then.
  const bool away = (back < 0 ? -back : back) > (number < 0 ? -number : number);
  bits -= away ? 1 : 0;
  bits |= back != number && number == number ? 1 : 0;
  return __builtin_bit_cast(float, bits);
}

// As OddFloat, by way of a double of at most 53 bits.
[[maybe_unused]] static inline float OddFloat(int64_t number) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (number >= -kExact && number <= kExact) return OddFloat(static_cast<double>(number));
  const int64_t cut = number & 0x7ff;
  return OddFloat(static_cast<double>((number - cut) | (cut != 0 ? 0x400 : 0)));
}

}  // namespace meshtrain::mesh
