// Matrix products.
#include "runtime/device/arithmetic.h"
#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::TensorType;
using program::Op;

struct Product {
  GemmShape shape;
  int64_t batch = 1;
  int64_t a_step = 0, b_step = 0, c_step = 0;  // elements from one product of the batch to the next
  GemmSplit split;
  bool settled = false;  // cut so by every process, whatever threads there are
  program::ValueId a = 0, b = 0, c = 0;
  int64_t a_elements = 0, b_elements = 0;
  std::shared_ptr<Bounds> bounds;
  double factor_limit = 0;    // Bounds::FactorLimit
  Bringing bringing;          // of a single product
  int64_t brought_bytes = 0;  // of a piece
};

// Of product k of the batch, or of piece i of a single one.
template <typename T>
void One(const Product& p, const Frame& f, const GemmPiece& at, int64_t k, int64_t i) {
  const T* a = f.As<const T>(p.a) + k * p.a_step + at.a;
  const T* b = f.As<const T>(p.b) + k * p.b_step + at.b;
  T* c = f.As<T>(p.c) + k * p.c_step + at.c;
  if constexpr (std::is_same_v<T, float>) {
    Gemm(at.shape, a, b, c, p.bringing, f.scratch + i * p.brought_bytes);
  } else {
    Gemm(at.shape, a, b, c);
  }
}

template <typename T>
KernelPtr Multiply(const Product& p, int64_t scratch) {
  return MakeKernel(
      [p](const Frame& f) {
        const T* a = f.As<const T>(p.a);
        const T* b = f.As<const T>(p.b);
        if (p.factor_limit > 0) {
          const auto within = [&](const T* at, int64_t n) {
            constexpr Type type = std::is_same_v<T, float> ? Type::kF32 : Type::kF64;
            return ActiveKernels().count_beyond(type, at, n, p.factor_limit) == 0;
          };
          p.bounds->Mark(f.device, p.c, within(a, p.a_elements) && within(b, p.b_elements));
        }
        const auto piece = [&](int64_t i) {
          const int64_t k = i / p.split.pieces;
          One<T>(p, f, PieceOf(p.shape, p.split, i % p.split.pieces), k, i);
        };
        if (f.pool != nullptr) {
          f.pool->Run(p.batch * p.split.pieces, piece);
        } else if (p.settled) {
          for (int64_t i = 0; i < p.batch * p.split.pieces; ++i) piece(i);
        } else {
          for (int64_t k = 0; k < p.batch; ++k) {
            One<T>(p, f, GemmPiece{.shape = p.shape}, k, 0);
          }
        }
      },
      scratch);
}

}  // namespace

KernelPtr MakeLinearKernel(const Making& making, const Op& op) {
  if (op.kind != "matmul") return nullptr;
  const TensorType& a = making.local().type(op.operands[0]);
  const TensorType& b = making.local().type(op.operands[1]);
  const TensorType& c = making.local().type(op.results[0]);
  Product p{.a = op.operands[0],
            .b = op.operands[1],
            .c = op.results[0],
            .a_elements = a.num_elements(),
            .b_elements = b.num_elements(),
            .bounds = making.bounds,
            .factor_limit = making.bounds->FactorLimit(op.results[0])};
  GemmShape& s = p.shape;
  s.transpose_a = op.attrs.Bool("transpose_a");
  s.transpose_b = op.attrs.Bool("transpose_b");
  const size_t rank = c.dims.size();
  s.m = c.dims[rank - 2];
  s.n = c.dims[rank - 1];
  s.k = a.dims[a.dims.size() - (s.transpose_a ? 2 : 1)];
  s.lda = a.dims.back();
  s.ldb = b.dims.back();
  s.ldc = c.dims.back();
  if (op.attrs.Bool("sum_batch")) {
    // The leading dimensions and the rows as rows.
    for (size_t d = 0; d + 2 < a.dims.size(); ++d) s.k *= a.dims[d];
  }
  for (size_t d = 0; d + 2 < rank; ++d) p.batch *= c.dims[d];
  p.a_step = a.dims.size() > 2 ? s.m * s.k : 0;
  p.b_step = b.dims.size() > 2 ? s.k * s.n : 0;
  p.c_step = s.m * s.n;
  if (p.batch > 1 && p.b_step == 0 && !s.transpose_a) {
    // One product over all rows.
    s.m *= p.batch;
    p.batch = 1;
  }
  p.settled = SettledProductThreads() > 0;
  const int threads = p.settled ? SettledProductThreads() : making.threads;
  if (p.batch < threads) p.split = SplitGemm(s, threads);
  if (c.dtype == mesh::DType::kF64) return Multiply<double>(p, 0);
  if (p.batch == 1) p.bringing = BringingOf(s);
  for (int64_t i = 0; i < p.split.pieces; ++i) {
    p.brought_bytes =
        std::max(p.brought_bytes, BroughtBytes(PieceOf(s, p.split, i).shape, p.bringing));
  }
  const int64_t scratch = std::max(p.split.pieces * p.brought_bytes, BroughtBytes(s, p.bringing));
  return Multiply<float>(p, scratch);
}

}  // namespace meshtrain::device::cpu
