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

}  // namespace

OneOpenMpThread::OneOpenMpThread() : before_(omp_get_max_threads()) {
  if (before_ != 1) omp_set_num_threads(1);
}

OneOpenMpThread::~OneOpenMpThread() {
  if (before_ != 1) omp_set_num_threads(before_);
}

void Gemm(const GemmShape& s, const float* a, const float* b, float* c) {
  if (NothingToAdd(s, c)) return;
  // The instruction set is settled before oneDNN's first use, which fixes oneDNN's.
  (void)ActiveKernels();
  const dnnl_status_t status = dnnl_sgemm(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m,
                                          s.n, s.k, 1.0f, a, s.lda, b, s.ldb, 0.0f, c, s.ldc);
  MT_CHECK(status == dnnl_success);
}

void Gemm(const GemmShape& s, const double* a, const double* b, double* c) {
  if (NothingToAdd(s, c)) return;
  ActiveKernels().gemm_f64(s.transpose_a, s.transpose_b, s.m, s.n, s.k, a, s.lda, b, s.ldb, c,
                           s.ldc);
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
  // rows is never slower while 32 of them are left (tests/bench/cpu_bench.cc).
  split.rows = s.m >= s.n || s.m / split.pieces >= 32;
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
