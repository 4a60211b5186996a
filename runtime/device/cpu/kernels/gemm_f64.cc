// f64 products by Eigen. Its templates are instantiated here for one instruction set, so its
// namespace is renamed: two sets must not share a function.
#include "runtime/device/cpu/kernels/parts.h"

#define MT_EIGEN_INNER(isa) Eigen_##isa
#define MT_EIGEN(isa) MT_EIGEN_INNER(isa)
#define Eigen MT_EIGEN(MT_ISA)
// g++ 12 takes its own _mm512_undefined_pd for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#include <Eigen/Core>

namespace meshtrain::device::cpu::MT_ISA {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using In = Eigen::Map<const Rows, 0, Stride>;
using Out = Eigen::Map<Rows, 0, Stride>;

}  // namespace

void GemmF64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
             const double* b, int64_t ldb, double* c, int64_t ldc) {
  const In left(a, ta ? k : m, ta ? m : k, Stride(lda));
  const In right(b, tb ? n : k, tb ? k : n, Stride(ldb));
  Out to(c, m, n, Stride(ldc));
  if (ta && tb) {
    to.noalias() = left.transpose() * right.transpose();
  } else if (ta) {
    to.noalias() = left.transpose() * right;
  } else if (tb) {
    to.noalias() = left * right.transpose();
  } else {
    to.noalias() = left * right;
  }
}

}  // namespace meshtrain::device::cpu::MT_ISA
