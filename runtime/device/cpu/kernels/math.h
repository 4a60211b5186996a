// exp, log, tanh and erf without branches, so that loops over them become vector code. f32: a few
// units in the last place over the whole range, infinities, NaN and denormal results included
// (tests/runtime/device/kernels_test.cc measures it); polynomials of exp and log from Cephes (S. L.
// Moshier), of erf fitted for the least greatest relative error. f64 and what is rare go to the C
// library.
#pragma once

#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {

template <typename To, typename From>
inline To Bits(From from) {
  return __builtin_bit_cast(To, from);
}

// e^x = 2^n (1 + q).
struct ExpParts {
  int32_t n;
  float q;
};

// For |x| below 150. q keeps the relative precision of a small x.
inline ExpParts PartsOfExp(float x) {
  // e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2.
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
  return {Bits<int32_t>(shifted) - Bits<int32_t>(kRound), p * (r * r) + r};
}

// 2^n, n from -126 to 127.
inline float PowerOf2(int32_t n) { return Bits<float>((n + 127) << 23); }

inline float Exp(float x) {
  // Clamped where the result is 0 or infinite anyway.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const ExpParts e = PartsOfExp(x);
  // 2^n in two factors, since n may be out of a float's exponents.
  const int32_t half = e.n >> 1;
  return (e.q + 1.0f) * PowerOf2(half) * PowerOf2(e.n - half);
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
  // (e^2a - 1) / (e^2a + 1), a = |x|; from 9.02 on it rounds to 1.
  float a = __builtin_fabsf(x);
  a = a > 9.02f ? 9.02f : a;
  const ExpParts e = PartsOfExp(a + a);
  const float scale = PowerOf2(e.n);
  const float less_one = scale * e.q + (scale - 1.0f);
  return __builtin_copysignf(less_one / (less_one + 2.0f), x);
}
inline double Tanh(double x) { return __builtin_tanh(x); }

inline float Erf(float x) {
  // x + x P(x^2) for small x, else 1 - e^-Q(|x|), Q near -log(erfc); from 4 on it rounds to 1.
  float a = __builtin_fabsf(x);
  a = a > 4.0f ? 4.0f : a;
  float q = -1.9821974e-4f;
  q = q * a + 3.065491e-3f;
  q = q * a + -2.2315217e-2f;
  q = q * a + 1.0411368e-1f;
  q = q * a + 6.3697606e-1f;
  q = q * a + 1.1277972f;
  q = q * a + 1.6644657e-4f;
  const ExpParts e = PartsOfExp(-q);
  const float scale = PowerOf2(e.n);
  const float big = (1.0f - scale) - scale * e.q;
  const float z = a * a;
  float p = -6.090374e-4f;
  p = p * z + 5.011966e-3f;
  p = p * z + -2.6778912e-2f;
  p = p * z + 1.1282141e-1f;
  p = p * z + -3.7612525e-1f;
  p = p * z + 1.2837915e-1f;
  const float small = p * a + a;
  return __builtin_copysignf(a < 0.9f ? small : big, x);
}
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
inline double Erf(double x) { return __builtin_erf(x); }
inline float Pow(float x, float y) { return __builtin_powf(x, y); }
inline double Pow(double x, double y) { return __builtin_pow(x, y); }
inline float Sqrt(float x) { return __builtin_sqrtf(x); }
inline double Sqrt(double x) { return __builtin_sqrt(x); }
inline float Floor(float x) { return __builtin_floorf(x); }
inline double Floor(double x) { return __builtin_floor(x); }

}  // namespace meshtrain::device::cpu::MT_ISA
