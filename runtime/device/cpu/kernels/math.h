// exp, log, tanh without branches, so that loops over them become vector code. f32: a few units in
// the last place over the whole range, infinities, NaN and denormal results included
// (tests/runtime/device/kernels_test.cc measures it); polynomials from Cephes (S. L. Moshier). f64
// and what is rare go to the C library.
#pragma once

#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {

template <typename To, typename From>
inline To Bits(From from) {
  return __builtin_bit_cast(To, from);
}

inline float Exp(float x) {
  // e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2. Clamped where the result is 0 or infinite
  // anyway.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's low bits are the rounded integer
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since n may be out of a float's exponents.
  const int32_t whole = Bits<int32_t>(shifted) - Bits<int32_t>(kRound);
  const int32_t half = whole >> 1;
  const float scale1 = Bits<float>((half + 127) << 23);
  const float scale2 = Bits<float>((whole - half + 127) << 23);
  return y * scale1 * scale2;
}
inline double Exp(double x) { return __builtin_exp(x); }

inline float Log(float x) {
  // Denormals are scaled into range; x = 2^e m, m in [sqrt(1/2), sqrt(2)).
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const int32_t bits = Bits<int32_t>(scaled);
  int32_t e = (bits >> 23) - 126;
  float m = Bits<float>((bits & 0x007FFFFF) | 0x3F000000);  // [0.5, 1)
  const bool low = m < 0.707106781186547524f;
  e = low ? e - 1 : e;
  m = low ? m + m : m;
  m = m - 1.0f;
  const float fe = static_cast<float>(tiny ? e - 23 : e);
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z;
  y = y + fe * -2.12194440e-4f;
  y = y - 0.5f * z;
  float r = m + y + fe * 0.693359375f;
  r = x > 3.40282347e38f ? x : r;  // infinity
  r = x == 0.0f ? -__builtin_inff() : r;
  r = (x < 0.0f || x != x) ? __builtin_nanf("") : r;
  return r;
}
inline double Log(double x) { return __builtin_log(x); }

inline float Tanh(float x) {
  const float a = __builtin_fabsf(x);
  const float big = 1.0f - 2.0f / (Exp(a + a) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z + -5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z + -3.33332819422e-1f;
  const float small = p * z * x + x;
  const float signed_big = x < 0.0f ? -big : big;
  return a < 0.625f ? small : signed_big;
}
inline double Tanh(double x) { return __builtin_tanh(x); }

// e^-|x| cannot overflow, and keeps the small results of large negative x.
template <typename T>
inline T Logistic(T x) {
  const T e = Exp(x < T(0) ? x : -x);
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

inline float Expm1(float x) { return __builtin_expm1f(x); }
inline double Expm1(double x) { return __builtin_expm1(x); }
inline float Sin(float x) { return __builtin_sinf(x); }
inline double Sin(double x) { return __builtin_sin(x); }
inline float Cos(float x) { return __builtin_cosf(x); }
inline double Cos(double x) { return __builtin_cos(x); }
inline float Log1p(float x) { return __builtin_log1pf(x); }
inline double Log1p(double x) { return __builtin_log1p(x); }
inline float Erf(float x) { return __builtin_erff(x); }
inline double Erf(double x) { return __builtin_erf(x); }
inline float Pow(float x, float y) { return __builtin_powf(x, y); }
inline double Pow(double x, double y) { return __builtin_pow(x, y); }
inline float Sqrt(float x) { return __builtin_sqrtf(x); }
inline double Sqrt(double x) { return __builtin_sqrt(x); }
inline float Floor(float x) { return __builtin_floorf(x); }
inline double Floor(double x) { return __builtin_floor(x); }

}  // namespace meshtrain::device::cpu::MT_ISA
