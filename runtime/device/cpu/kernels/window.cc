// Sums and maxima of windows, channels side by side. A strip of channels is a vector, and what is
// known of it stays in registers while it goes over the taps.
//
// Kept true: each channel is computed as if alone, tap after tap, so a result does not depend on
// how many channels a strip has, nor on how many windows a call is given.
#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {
namespace {

template <typename T>
struct WholeAs;  // an integer as wide as T
template <>
struct WholeAs<float> {
  using type = int32_t;
};
template <>
struct WholeAs<double> {
  using type = int64_t;
};

// The first kUsed of kLanes channels, and as many integers. Comparisons select whole lanes.
template <typename T, int kLanes, int kUsed = kLanes>
struct Strip {
  using Whole = typename WholeAs<T>::type;
  typedef T Numbers __attribute__((vector_size(kLanes * sizeof(T))));
  typedef Whole Places __attribute__((vector_size(kLanes * sizeof(T))));
  static Numbers Load(const T* at) {
    Numbers v = {};
    if constexpr (kUsed == kLanes) {
      __builtin_memcpy(&v, at, sizeof v);
    } else {
      for (int i = 0; i < kUsed; ++i) v[i] = at[i];
    }
    return v;
  }
  static void Store(T* at, Numbers v) {
    if constexpr (kUsed == kLanes) {
      __builtin_memcpy(at, &v, sizeof v);
    } else {
      for (int i = 0; i < kUsed; ++i) at[i] = v[i];
    }
  }
};

// body(strip, j) for strips of channels j.. that cover [0, n): as wide as there are.
template <typename T, typename Body>
inline void Strips(int64_t n, const Body& body) {
  constexpr int kMost = kVectorBytes / sizeof(T), kLeast = 16 / sizeof(T);
  int64_t j = 0;
  for (; j + kMost <= n; j += kMost) body(Strip<T, kMost>(), j);
  if constexpr (kMost >= 4 * kLeast) {
    if (j + 2 * kLeast <= n) {
      body(Strip<T, 2 * kLeast>(), j);
      j += 2 * kLeast;
    }
  }
  if constexpr (kMost >= 2 * kLeast) {
    if (j + kLeast <= n) {
      body(Strip<T, kLeast>(), j);
      j += kLeast;
    }
  }
  if (j == n) return;
  if constexpr (kLeast == 4) {
    if (n - j == 3) return body(Strip<T, kLeast, 3>(), j);
    if (n - j == 2) return body(Strip<T, kLeast, 2>(), j);
  }
  body(Strip<T, kLeast, 1>(), j);
}

template <typename T>
void SumOf(T* d, const T* a, const WindowRow& row) {
  for (int64_t r = 0; r < row.windows; ++r, d += row.apart, a += row.step) {
    Strips<T>(row.channels, [&](auto strip, int64_t j) {
      using S = decltype(strip);
      typename S::Numbers sum = {};
      for (int64_t t = 0; t < row.count; ++t) sum += S::Load(a + row.taps[t] + j);
      S::Store(d + j, sum);
    });
  }
}

// Selects alone, no branches: a NaN is not <= anything, so it comes in; and once there it stays.
template <typename T>
void MaxOf(T* d, const T* a, const WindowRow& row) {
  for (int64_t r = 0; r < row.windows; ++r, d += row.apart, a += row.step) {
    Strips<T>(row.channels, [&](auto strip, int64_t j) {
      using S = decltype(strip);
      using Numbers = typename S::Numbers;
      Numbers top = S::Load(a + row.taps[0] + j);
      for (int64_t t = 1; t < row.count; ++t) {
        const Numbers v = S::Load(a + row.taps[t] + j);
        const Numbers best = v <= top ? top : v;
        top = top != top ? top : best;
      }
      S::Store(d + j, top);
    });
  }
}

// Likewise, with what `v` has there.
template <typename T>
void PickOf(T* d, const T* a, const T* v, const WindowRow& row) {
  for (int64_t r = 0; r < row.windows; ++r, d += row.apart, a += row.step, v += row.step) {
    Strips<T>(row.channels, [&](auto strip, int64_t j) {
      using S = decltype(strip);
      using Numbers = typename S::Numbers;
      Numbers top = S::Load(a + row.taps[0] + j), picked = S::Load(v + row.taps[0] + j);
      for (int64_t t = 1; t < row.count; ++t) {
        const Numbers x = S::Load(a + row.taps[t] + j), with = S::Load(v + row.taps[t] + j);
        const Numbers best = x <= top ? top : x, by = x <= top ? picked : with;
        picked = top != top ? picked : by;
        top = top != top ? top : best;
      }
      S::Store(d + j, picked);
    });
  }
}

// The tap of the largest is looked for first, then every tap of d is written. Zero is added to a
// number that is written too, so that -0 becomes what the sum of one would be.
template <typename T, bool kAdd>
void MaxGradOf(T* d, const T* a, const T* g, const WindowRow& row) {
  for (int64_t r = 0; r < row.windows; ++r, d += row.step, a += row.step, g += row.apart) {
    Strips<T>(row.channels, [&](auto strip, int64_t j) {
      using S = decltype(strip);
      using Numbers = typename S::Numbers;
      using Places = typename S::Places;
      Numbers top = S::Load(a + row.taps[0] + j);
      Places at = {}, tap = {};
      for (int64_t t = 1; t < row.count; ++t) {
        tap += 1;
        const Numbers v = S::Load(a + row.taps[t] + j);
        const Numbers best = v <= top ? top : v;
        const Places where = v <= top ? at : tap;
        at = top != top ? at : where;
        top = top != top ? top : best;
      }
      const Numbers zero = {}, from = S::Load(g + j) + zero;
      tap = Places{};
      for (int64_t t = 0; t < row.count; ++t, tap += 1) {
        T* to = d + row.taps[t] + j;
        const Numbers given = at == tap ? from : zero;
        S::Store(to, kAdd ? S::Load(to) + given : given);
      }
    });
  }
}

template <typename T>
void SetAll(T* d, T value, const WindowRow& row) {
  for (int64_t r = 0; r < row.windows; ++r, d += row.apart) {
    for (int64_t j = 0; j < row.channels; ++j) d[j] = value;
  }
}

template <typename T>
void MaxRow(void* d, const void* a, const WindowRow& row) {
  if (row.count == 0) return SetAll(static_cast<T*>(d), -static_cast<T>(__builtin_inf()), row);
  MaxOf(static_cast<T*>(d), static_cast<const T*>(a), row);
}

template <typename T>
void PickRow(void* d, const void* a, const void* v, const WindowRow& row) {
  if (row.count == 0) return SetAll(static_cast<T*>(d), T{0}, row);
  PickOf(static_cast<T*>(d), static_cast<const T*>(a), static_cast<const T*>(v), row);
}

template <typename T>
void MaxGradRow(void* d, const void* a, const void* g, const WindowRow& row, bool add) {
  if (row.count == 0) return;
  const auto of = add ? MaxGradOf<T, true> : MaxGradOf<T, false>;
  of(static_cast<T*>(d), static_cast<const T*>(a), static_cast<const T*>(g), row);
}

}  // namespace

void WindowSum(Type type, void* d, const void* a, const WindowRow& row) {
  if (type == Type::kF32) return SumOf(static_cast<float*>(d), static_cast<const float*>(a), row);
  SumOf(static_cast<double*>(d), static_cast<const double*>(a), row);
}

void WindowMax(Type type, void* d, const void* a, const WindowRow& row) {
  type == Type::kF32 ? MaxRow<float>(d, a, row) : MaxRow<double>(d, a, row);
}

void WindowPick(Type type, void* d, const void* a, const void* v, const WindowRow& row) {
  type == Type::kF32 ? PickRow<float>(d, a, v, row) : PickRow<double>(d, a, v, row);
}

void WindowMaxGrad(Type type, void* d, const void* a, const void* g, const WindowRow& row,
                   bool add) {
  type == Type::kF32 ? MaxGradRow<float>(d, a, g, row, add) : MaxGradRow<double>(d, a, g, row, add);
}

}  // namespace meshtrain::device::cpu::MT_ISA
