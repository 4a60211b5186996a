// Sums and maxima of windows, channels side by side: the inner loops run over channels, which lie
// next to each other, so they are vectors on any instruction set.
#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {
namespace {

template <typename T>
void SumOf(T* __restrict d, const T* a, const int64_t* taps, int64_t count, int64_t n) {
  for (int64_t j = 0; j < n; ++j) d[j] = 0;
  for (int64_t t = 0; t < count; ++t) {
    const T* __restrict from = a + taps[t];
    for (int64_t j = 0; j < n; ++j) d[j] += from[j];
  }
}

// Selects alone, no branches: a NaN is not <= anything, so it comes in; and once there it stays.
// I: as wide as T, so that a vector of the one is compared for a vector of the other.
template <typename T, typename I>
void MaxOf(T* __restrict d, I* __restrict at, const T* a, const int64_t* taps, int64_t count,
           int64_t n) {
  if (count == 0) {
    for (int64_t j = 0; j < n; ++j) d[j] = -static_cast<T>(__builtin_inf());
    if (at != nullptr) {
      for (int64_t j = 0; j < n; ++j) at[j] = -1;
    }
    return;
  }
  const T* __restrict first = a + taps[0];
  for (int64_t j = 0; j < n; ++j) d[j] = first[j];
  if (at == nullptr) {
    for (int64_t t = 1; t < count; ++t) {
      const T* __restrict from = a + taps[t];
      for (int64_t j = 0; j < n; ++j) {
        const T v = from[j], top = d[j];
        const T best = v <= top ? top : v;
        d[j] = top != top ? top : best;
      }
    }
    return;
  }
  for (int64_t j = 0; j < n; ++j) at[j] = 0;
  for (int64_t t = 1; t < count; ++t) {
    const T* __restrict from = a + taps[t];
    const I index = static_cast<I>(t);
    for (int64_t j = 0; j < n; ++j) {
      const T v = from[j], top = d[j];
      const T best = v <= top ? top : v;
      const I where = v <= top ? at[j] : index;
      d[j] = top != top ? top : best;
      at[j] = top != top ? at[j] : where;
    }
  }
}

template <typename T, typename I>
void SpreadOf(T* d, const I* __restrict at, const T* __restrict g, const int64_t* taps,
              int64_t count, int64_t n) {
  for (int64_t t = 0; t < count; ++t) {
    T* __restrict to = d + taps[t];
    const I index = static_cast<I>(t);
    for (int64_t j = 0; j < n; ++j) to[j] += at[j] == index ? g[j] : 0;
  }
}

}  // namespace

void WindowSum(Type type, void* d, const void* a, const int64_t* taps, int64_t count, int64_t n) {
  if (type == Type::kF32) {
    return SumOf(static_cast<float*>(d), static_cast<const float*>(a), taps, count, n);
  }
  SumOf(static_cast<double*>(d), static_cast<const double*>(a), taps, count, n);
}

void WindowMax(Type type, void* d, void* at, const void* a, const int64_t* taps, int64_t count,
               int64_t n) {
  if (type == Type::kF32) {
    return MaxOf(static_cast<float*>(d), static_cast<int32_t*>(at), static_cast<const float*>(a),
                 taps, count, n);
  }
  MaxOf(static_cast<double*>(d), static_cast<int64_t*>(at), static_cast<const double*>(a), taps,
        count, n);
}

void WindowSpread(Type type, void* d, const void* at, const void* g, const int64_t* taps,
                  int64_t count, int64_t n) {
  if (type == Type::kF32) {
    return SpreadOf(static_cast<float*>(d), static_cast<const int32_t*>(at),
                    static_cast<const float*>(g), taps, count, n);
  }
  SpreadOf(static_cast<double*>(d), static_cast<const int64_t*>(at), static_cast<const double*>(g),
           taps, count, n);
}

}  // namespace meshtrain::device::cpu::MT_ISA
