// Reductions, softmax and the cross-entropies over rows.
//
// Kept true of sums of f32 and f64: at most kBlock numbers are added in their own type, and such
// blocks in f64, which is rounded to the type once, at the end. So with u = 2^-24 (f32) a sum of
// any number of elements below 10^9 errs by at most 16 u of the sum of their magnitudes, 9.6e-7: 15
// additions on an element's way through a block, one rounding at the end, and those in f64, which
// together are less than u / 5. Of f64 the additions of the blocks count: (16 + n / 16) 2^-53.
#include "runtime/device/cpu/kernels/math.h"
#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {
namespace {

template <typename T>
constexpr bool kReal = false;
template <>
constexpr bool kReal<float> = true;
template <>
constexpr bool kReal<double> = true;

// Of integers, which wrap.
struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
template <>
inline int32_t Sum::Apply(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
template <>
inline int64_t Sum::Apply(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
// NaN wins, whichever side it is on.
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return (a >= b || a != a) ? a : b;
  }
};
struct Min {
  template <typename T>
  static T Apply(T a, T b) {
    return (a <= b || a != a) ? a : b;
  }
};

constexpr int kLanes = 16;
constexpr int kBlock = 16;  // numbers of one column that are added in their own type

// acc[k] = the sum over r < rows of a[r * stride + k], for k < W and rows in [1, kBlock].
template <int W, typename T>
inline void SumBlock(T* __restrict acc, const T* __restrict a, int64_t rows, int64_t stride) {
  for (int k = 0; k < W; ++k) acc[k] = a[k];
  const T* row = a + stride;
#pragma GCC unroll 3
  for (int64_t r = 1; r < rows; ++r, row += stride) {
    for (int k = 0; k < W; ++k) acc[k] += row[k];
  }
}

// wide[k] = the sum over r < rows of a[r * stride + k], for k < W and rows >= 1; where it does not
// `begin` there, it is added to wide[k]. The order of adding depends on `rows` alone, never on W.
template <int W, typename T>
inline void SumColumns(double* __restrict wide, const T* __restrict a, int64_t rows, int64_t stride,
                       bool begin) {
  int64_t from = 0;
  if (begin) {
    T acc[W];
    SumBlock<W>(acc, a, rows < kBlock ? rows : kBlock, stride);
    for (int k = 0; k < W; ++k) wide[k] = static_cast<double>(acc[k]);
    from = kBlock;
  }
  for (; from + kBlock <= rows; from += kBlock) {
    T acc[W];
    SumBlock<W>(acc, a + from * stride, kBlock, stride);
    for (int k = 0; k < W; ++k) wide[k] += static_cast<double>(acc[k]);
  }
  if (from < rows) {
    T acc[W];
    SumBlock<W>(acc, a + from * stride, rows - from, stride);
    for (int k = 0; k < W; ++k) wide[k] += static_cast<double>(acc[k]);
  }
}

// The same into d, f64 or T; where it is the `first`, d begins there.
template <int W, typename D, typename T>
inline void SumStrip(D* __restrict d, const T* __restrict a, int64_t rows, int64_t stride,
                     bool first) {
  if constexpr (sizeof(D) == sizeof(double)) {
    SumColumns<W>(d, a, rows, stride, first);
  } else {
    double wide[W];
    if (!first) {
      for (int k = 0; k < W; ++k) wide[k] = static_cast<double>(d[k]);
    }
    SumColumns<W>(wide, a, rows, stride, first);
    for (int k = 0; k < W; ++k) d[k] = static_cast<D>(wide[k]);
  }
}

// The same for k < n, in strips whose sums stay in registers over a block of rows.
template <typename D, typename T>
void SumStrips(D* __restrict d, const T* __restrict a, int64_t rows, int64_t stride, int64_t n,
               bool first) {
  int64_t j = 0;
  for (; j + 64 <= n; j += 64) SumStrip<64>(d + j, a + j, rows, stride, first);
  for (; j + 16 <= n; j += 16) SumStrip<16>(d + j, a + j, rows, stride, first);
  for (; j + 4 <= n; j += 4) SumStrip<4>(d + j, a + j, rows, stride, first);
  for (; j < n; ++j) SumStrip<1>(d + j, a + j, rows, stride, first);
}

// The sum of n >= L contiguous elements: L lanes, then halves, in f64.
template <int L, typename T>
double LanesOf(const T* a, int64_t n) {
  double lanes[L];
  const int64_t rows = n / L;
  SumColumns<L>(lanes, a, rows, L, true);
  const T* rest = a + rows * L;
  for (int64_t i = 0; i < n - rows * L; ++i) lanes[i] += static_cast<double>(rest[i]);
  for (int half = L / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

template <typename T>
double WideRow(const T* a, int64_t n) {
  if (n >= 512) return LanesOf<64>(a, n);
  if (n >= kLanes) return LanesOf<kLanes>(a, n);
  double sum = static_cast<double>(a[0]);
  for (int64_t i = 1; i < n; ++i) sum += static_cast<double>(a[i]);
  return sum;
}

template <typename F, typename T>
void RowsLoop(T* __restrict d, const T* __restrict a, int64_t rows, int64_t stride, int64_t n,
              bool first) {
  // Columns in strips that stay in registers over all rows.
  constexpr int kStrip = 64;
  int64_t j = 0;
  for (; j + kStrip <= n; j += kStrip) {
    T acc[kStrip];
    const T* row = a + j;
    int64_t r = 0;
    if (first) {
      for (int k = 0; k < kStrip; ++k) acc[k] = row[k];
      r = 1;
    } else {
      for (int k = 0; k < kStrip; ++k) acc[k] = d[j + k];
    }
    for (; r < rows; ++r) {
      for (int k = 0; k < kStrip; ++k) acc[k] = F::Apply(acc[k], row[r * stride + k]);
    }
    for (int k = 0; k < kStrip; ++k) d[j + k] = acc[k];
  }
  if (j == n) return;
  int64_t r = 0;
  if (first) {
    for (int64_t k = j; k < n; ++k) d[k] = a[k];
    r = 1;
  }
  for (; r < rows; ++r) {
    for (int64_t k = j; k < n; ++k) d[k] = F::Apply(d[k], a[r * stride + k]);
  }
}

template <typename F, typename T>
T RowFold(const T* a, int64_t n) {
  if (n < kLanes) {
    T acc = a[0];
    for (int64_t i = 1; i < n; ++i) acc = F::Apply(acc, a[i]);
    return acc;
  }
  T acc[kLanes];
  for (int k = 0; k < kLanes; ++k) acc[k] = a[k];
  int64_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) acc[k] = F::Apply(acc[k], a[i + k]);
  }
  for (int k = 0; i < n; ++i, ++k) acc[k] = F::Apply(acc[k], a[i]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) acc[k] = F::Apply(acc[k], acc[k + half]);
  }
  return acc[0];
}

template <typename T>
void RowsOf(Fold fold, void* d, const void* a, int64_t rows, int64_t stride, int64_t n,
            bool first) {
  T* to = static_cast<T*>(d);
  const T* from = static_cast<const T*>(a);
  switch (fold) {
    case Fold::kSum:
      if constexpr (kReal<T>) {
        return SumStrips(to, from, rows, stride, n, first);
      } else {
        return RowsLoop<Sum, T>(to, from, rows, stride, n, first);
      }
    case Fold::kMax:
      return RowsLoop<Max, T>(to, from, rows, stride, n, first);
    case Fold::kMin:
      return RowsLoop<Min, T>(to, from, rows, stride, n, first);
  }
}

template <typename T>
void RowOf(Fold fold, void* d, const void* a, int64_t n) {
  T* to = static_cast<T*>(d);
  const T* from = static_cast<const T*>(a);
  switch (fold) {
    case Fold::kSum:
      if constexpr (kReal<T>) {
        *to = static_cast<T>(WideRow(from, n));
      } else {
        *to = RowFold<Sum, T>(from, n);
      }
      return;
    case Fold::kMax:
      *to = RowFold<Max, T>(from, n);
      return;
    case Fold::kMin:
      *to = RowFold<Min, T>(from, n);
      return;
  }
}

// The largest of a row and the sum of exp(a - largest), which goes to d.
template <typename T>
double ExpRow(const T* __restrict a, T* __restrict d, int64_t n, T top) {
  for (int64_t j = 0; j < n; ++j) d[j] = Exp(a[j] - top);
  return WideRow(d, n);
}

template <typename T>
void SoftmaxOf(bool log, T* __restrict d, const T* __restrict a, int64_t rows, int64_t n) {
  if (n == 0) return;
  for (int64_t r = 0; r < rows; ++r, a += n, d += n) {
    const T top = RowFold<Max, T>(a, n);
    const T sum = static_cast<T>(ExpRow(a, d, n, top));
    if (log) {
      // Not less top + log(sum): beside a large top the logarithm would be lost.
      const T log_sum = Log(sum);
      for (int64_t j = 0; j < n; ++j) d[j] = (a[j] - top) - log_sum;
    } else {
      const T scale = T(1) / sum;
      for (int64_t j = 0; j < n; ++j) d[j] *= scale;
    }
  }
}

float Magnitude(float x) { return __builtin_fabsf(x); }
double Magnitude(double x) { return __builtin_fabs(x); }

// Counts as wide as the elements, so that the lanes stay together.
template <typename T, typename Count>
int64_t BeyondOf(const T* a, int64_t n, T limit) {
  constexpr int64_t kLeast = int64_t{1} << 30;  // elements until a lane could be full
  constexpr int kWidth = 64;
  int64_t total = 0;
  for (int64_t from = 0; from < n; from += kLeast) {
    const int64_t end = n - from < kLeast ? n : from + kLeast;
    Count counts[kWidth] = {};
    int64_t i = from;
    for (; i + kWidth <= end; i += kWidth) {
      for (int k = 0; k < kWidth; ++k) {
        counts[k] += Magnitude(a[i + k]) <= limit ? 0 : 1;
      }
    }
    for (; i < end; ++i) total += Magnitude(a[i]) <= limit ? 0 : 1;
    for (int k = 0; k < kWidth; ++k) total += counts[k];
  }
  return total;
}

int64_t LabelAt(Type labels, const void* label, int64_t r) {
  return labels == Type::kI32 ? static_cast<const int32_t*>(label)[r]
                              : static_cast<const int64_t*>(label)[r];
}

template <typename T>
void XentOf(Type labels, T* d, const T* a, const void* label, int64_t rows, int64_t n) {
  constexpr int64_t kChunk = 256;
  T part[kChunk];
  for (int64_t r = 0; r < rows; ++r, a += n) {
    const int64_t at = LabelAt(labels, label, r);
    if (at < 0 || at >= n) {
      d[r] = static_cast<T>(__builtin_nan(""));
      continue;
    }
    const T top = RowFold<Max, T>(a, n);
    double sum = 0;
    for (int64_t j = 0; j < n; j += kChunk) {
      sum += ExpRow(a + j, part, n - j < kChunk ? n - j : kChunk, top);
    }
    d[r] = Log(static_cast<T>(sum)) - (a[at] - top);
  }
}

template <typename T>
void XentGradOf(Type labels, T* __restrict d, const T* g, const T* __restrict a, const void* label,
                int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, a += n, d += n) {
    const int64_t at = LabelAt(labels, label, r);
    if (at < 0 || at >= n) {
      for (int64_t j = 0; j < n; ++j) d[j] = static_cast<T>(__builtin_nan(""));
      continue;
    }
    const T sum = static_cast<T>(ExpRow(a, d, n, RowFold<Max, T>(a, n)));
    const T scale = g[r] / sum;
    for (int64_t j = 0; j < n; ++j) d[j] *= scale;
    d[at] -= g[r];
  }
}

}  // namespace

void FoldRows(Fold fold, Type type, void* d, const void* a, int64_t rows, int64_t stride, int64_t n,
              bool first) {
  switch (type) {
    case Type::kBool:
    case Type::kU8:
      return RowsOf<uint8_t>(fold, d, a, rows, stride, n, first);
    case Type::kI32:
      return RowsOf<int32_t>(fold, d, a, rows, stride, n, first);
    case Type::kI64:
      return RowsOf<int64_t>(fold, d, a, rows, stride, n, first);
    case Type::kF32:
      return RowsOf<float>(fold, d, a, rows, stride, n, first);
    case Type::kF64:
      return RowsOf<double>(fold, d, a, rows, stride, n, first);
    case Type::kBF16:
    case Type::kF16:
      break;
  }
}

void FoldRow(Fold fold, Type type, void* d, const void* a, int64_t n) {
  switch (type) {
    case Type::kBool:
    case Type::kU8:
      return RowOf<uint8_t>(fold, d, a, n);
    case Type::kI32:
      return RowOf<int32_t>(fold, d, a, n);
    case Type::kI64:
      return RowOf<int64_t>(fold, d, a, n);
    case Type::kF32:
      return RowOf<float>(fold, d, a, n);
    case Type::kF64:
      return RowOf<double>(fold, d, a, n);
    case Type::kBF16:
    case Type::kF16:
      break;
  }
}

void SumRows(Type type, double* d, const void* a, int64_t rows, int64_t stride, int64_t n,
             bool first) {
  if (type == Type::kF32) {
    return SumStrips(d, static_cast<const float*>(a), rows, stride, n, first);
  }
  SumStrips(d, static_cast<const double*>(a), rows, stride, n, first);
}

void SumRow(Type type, double* d, const void* a, int64_t n) {
  *d = type == Type::kF32 ? WideRow(static_cast<const float*>(a), n)
                          : WideRow(static_cast<const double*>(a), n);
}

int64_t CountBeyond(Type type, const void* a, int64_t n, double limit) {
  if (type == Type::kF64) return BeyondOf<double, int64_t>(static_cast<const double*>(a), n, limit);
  if (type == Type::kBF16 || type == Type::kF16) {
    constexpr int64_t kBlock = 512;
    float block[kBlock];
    int64_t count = 0;
    for (int64_t at = 0; at < n; at += kBlock) {
      const int64_t some = n - at < kBlock ? n - at : kBlock;
      FindCast(type, Type::kF32)(block, static_cast<const uint16_t*>(a) + at, nullptr, nullptr,
                                 some);
      count += CountBeyond(Type::kF32, block, some, limit);
    }
    return count;
  }
  const float narrow = limit < __FLT_MAX__ ? static_cast<float>(limit) : __FLT_MAX__;
  return BeyondOf<float, int32_t>(static_cast<const float*>(a), n, narrow);
}

void Softmax(Type type, bool log, void* d, const void* a, int64_t rows, int64_t n) {
  if (type == Type::kF32) {
    return SoftmaxOf(log, static_cast<float*>(d), static_cast<const float*>(a), rows, n);
  }
  SoftmaxOf(log, static_cast<double*>(d), static_cast<const double*>(a), rows, n);
}

void SparseXent(Type type, Type labels, void* d, const void* a, const void* label, int64_t rows,
                int64_t n) {
  if (type == Type::kF32) {
    return XentOf(labels, static_cast<float*>(d), static_cast<const float*>(a), label, rows, n);
  }
  XentOf(labels, static_cast<double*>(d), static_cast<const double*>(a), label, rows, n);
}

void SparseXentGrad(Type type, Type labels, void* d, const void* g, const void* a,
                    const void* label, int64_t rows, int64_t n) {
  if (type == Type::kF32) {
    return XentGradOf(labels, static_cast<float*>(d), static_cast<const float*>(g),
                      static_cast<const float*>(a), label, rows, n);
  }
  XentGradOf(labels, static_cast<double*>(d), static_cast<const double*>(g),
             static_cast<const double*>(a), label, rows, n);
}

}  // namespace meshtrain::device::cpu::MT_ISA
