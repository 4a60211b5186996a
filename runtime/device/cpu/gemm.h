// Matrix products on the calling thread: f32 by oneDNN, f64 by Eigen, both reading transposed
// operands where they lie.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshtrain::device::cpu {

// While it lives, OpenMP regions that this thread enters run on it alone: oneDNN must not start a
// team of its own under our pool.
class OneOpenMpThread {
 public:
  OneOpenMpThread();
  ~OneOpenMpThread();
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

// One product C[m,n] = A[m,k] B[k,n], row-major. With transpose_a, A lies in memory as [k,m], and
// so with B. lda, ldb, ldc: elements from one row in memory to the next.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
};

// C is written, never read; k = 0 gives zeros.
void Gemm(const GemmShape& s, const float* a, const float* b, float* c);
void Gemm(const GemmShape& s, const double* a, const double* b, double* c);

// Rows in memory that lie a multiple of 2 kB apart keep to few sets of the caches: oneDNN, which
// reads a few elements of many of them, takes up to twice its time. The rows of a factor that lies
// as [k, ..] are then brought into scratch some at a time, with room between them, and the product
// is computed part by part. Follows from the whole product, so that the order of adding does not
// depend on how it is cut.
struct Bringing {
  int64_t rows = 0;  // at a time; 0: all is read where it lies
  bool a = false, b = false;
};
Bringing BringingOf(const GemmShape& whole);
// For a product or a piece of one.
int64_t BroughtBytes(const GemmShape& s, const Bringing& bringing);
void Gemm(const GemmShape& s, const float* a, const float* b, float* c, const Bringing& bringing,
          std::byte* scratch);

// How a product is cut for several threads: `pieces` blocks of rows or of columns of C.
struct GemmSplit {
  bool rows = true;
  int64_t pieces = 1;
};
GemmSplit SplitGemm(const GemmShape& s, int threads);
// The block of C that piece `i` computes.
struct GemmPiece {
  GemmShape shape;
  int64_t a = 0, b = 0, c = 0;  // offsets into A, B and C, elements
};
GemmPiece PieceOf(const GemmShape& s, const GemmSplit& split, int64_t i);

}  // namespace meshtrain::device::cpu
