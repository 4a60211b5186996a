#include "runtime/device/cpu/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/device/cpu/kernels.h"

// Of libgomp, which oneDNN brings; its header is the compiler's and not every compiler has it.
extern "C" {
void omp_set_num_threads(int threads);
int omp_get_max_threads(void);
}

namespace meshtrain::device::cpu {
namespace {

template <typename T>
bool NothingToAdd(const GemmShape& s, T* c) {
  if (s.m == 0 || s.n == 0) return true;
  if (s.k > 0) return false;
  for (int64_t i = 0; i < s.m; ++i) std::memset(c + i * s.ldc, 0, s.n * sizeof(T));
  return true;
}

// C = A B, or C += A B with beta 1.
void Sgemm(const GemmShape& s, const float* a, const float* b, float beta, float* c) {
  // The instruction set is settled before oneDNN's first use, which fixes oneDNN's.
  (void)ActiveKernels();
  const dnnl_status_t status = dnnl_sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m,
                                          s.n, s.k, 1.0f, a, s.lda, b, s.ldb, beta, c, s.ldc);
  MT_CHECK(status == dnnl_success);
}

// Elements between rows of so many that are brought: a line of the cache more.
int64_t BroughtStride(int64_t elements) { return (elements + 15) / 16 * 16 + 16; }

int64_t StridesOf(const GemmShape& s, const Bringing& bringing) {
  return (bringing.a ? BroughtStride(s.m) : 0) + (bringing.b ? BroughtStride(s.n) : 0);
}

// Rows [first, first + count) of a factor that lies as [k, elements].
const float* Bring(const float* from, int64_t stride, int64_t first, int64_t count,
                   int64_t elements, float* to) {
  for (int64_t r = 0; r < count; ++r) {
    std::memcpy(to + r * BroughtStride(elements), from + (first + r) * stride,
                elements * sizeof(float));
  }
  return to;
}

}  // namespace

OneOpenMpThread::OneOpenMpThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}

OneOpenMpThread::~OneOpenMpThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

void Gemm(const GemmShape& s, const float* a, const float* b, float* c) {
  if (NothingToAdd(s, c)) return;
  Sgemm(s, a, b, 0, c);
}

void Gemm(const GemmShape& s, const double* a, const double* b, double* c) {
  if (NothingToAdd(s, c)) return;
  ActiveKernels().gemm_f64(s.transpose_a, s.transpose_b, s.m, s.n, s.k, a, s.lda, b, s.ldb, c,
                           s.ldc);
}

Bringing BringingOf(const GemmShape& whole) {
  // All measured on an EPYC of 32 KiB and 512 KiB of caches: 2 kB apart a product takes 1.3 to 1.6
  // times its time, 4 kB apart 2 to 2.3 times.
  constexpr int64_t kApart = 512;
  // Of more rows of C oneDNN brings B together itself; for fewer than these it would not pay.
  constexpr int64_t kFewest = 64, kMost = 1024;
  // What is brought at a time, beside a block of C in the second-level cache.
  constexpr int64_t kElements = 160 << 10;
  const auto apart = [](int64_t stride) { return stride > 0 && stride % kApart == 0; };
  const bool large = whole.m >= kFewest && whole.n >= kFewest && whole.k >= kFewest;
  Bringing bringing;
  if (!large) return bringing;
  bringing.a = whole.transpose_a && apart(whole.lda);
  bringing.b = !whole.transpose_b && apart(whole.ldb) && whole.m <= kMost;
  if (!bringing.a && !bringing.b) return bringing;
  bringing.rows = std::clamp<int64_t>(kElements / StridesOf(whole, bringing) / 64 * 64, 64, 256);
  return bringing;
}

int64_t BroughtBytes(const GemmShape& s, const Bringing& bringing) {
  return std::min(bringing.rows, s.k) * StridesOf(s, bringing) *
         static_cast<int64_t>(sizeof(float));
}

void Gemm(const GemmShape& s, const float* a, const float* b, float* c, const Bringing& bringing,
          std::byte* scratch) {
  if (bringing.rows == 0) return Gemm(s, a, b, c);
  if (NothingToAdd(s, c)) return;
  GemmShape part = s;
  if (bringing.a) part.lda = BroughtStride(s.m);
  if (bringing.b) part.ldb = BroughtStride(s.n);
  auto* brought_a = reinterpret_cast<float*>(scratch);
  float* brought_b =
      brought_a + (bringing.a ? std::min(bringing.rows, s.k) * BroughtStride(s.m) : 0);
  for (int64_t first = 0; first < s.k; first += bringing.rows) {
    part.k = std::min(bringing.rows, s.k - first);
    const float* part_a = bringing.a ? Bring(a, s.lda, first, part.k, s.m, brought_a)
                                     : a + first * (s.transpose_a ? s.lda : 1);
    const float* part_b = bringing.b ? Bring(b, s.ldb, first, part.k, s.n, brought_b)
                                     : b + first * (s.transpose_b ? 1 : s.ldb);
    Sgemm(part, part_a, part_b, first == 0 ? 0 : 1, c);
  }
}

GemmSplit SplitGemm(const GemmShape& s, int threads) {
  // A piece below this many multiplications takes a few microseconds: little more than to hand it
  // over.
  constexpr double kWorthwhile = 1 << 18;
  const double work =
      static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  GemmSplit split;
  split.pieces = std::clamp<int64_t>(static_cast<int64_t>(work / kWorthwhile), 1, threads);
  // Each piece packs anew what it shares with the others. Measured on the MLP's shapes, cutting
  // rows is never slower while 32 of them are left (tests/bench/cpu_bench.cc); of a transposed A,
  // whose rows of C are its columns, where there are more of them.
  split.rows = s.m >= s.n || (!s.transpose_a && s.m / split.pieces >= 32);
  split.pieces = std::min(split.pieces, std::max<int64_t>(1, split.rows ? s.m / 16 : s.n / 16));
  return split;
}

GemmPiece PieceOf(const GemmShape& s, const GemmSplit& split, int64_t i) {
  constexpr int64_t kTile = 16;
  const int64_t whole = split.rows ? s.m : s.n;
  const int64_t tiles = (whole + kTile - 1) / kTile;
  const int64_t begin = tiles * i / split.pieces * kTile;
  const int64_t end = std::min(whole, tiles * (i + 1) / split.pieces * kTile);
  GemmPiece piece{.shape = s};
  if (split.rows) {
    piece.shape.m = end - begin;
    piece.a = s.transpose_a ? begin : begin * s.lda;
    piece.c = begin * s.ldc;
  } else {
    piece.shape.n = end - begin;
    piece.b = s.transpose_b ? begin * s.ldb : begin;
    piece.c = begin;
  }
  return piece;
}

}  // namespace meshtrain::device::cpu
