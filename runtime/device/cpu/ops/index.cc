// Softmax, cross-entropies, one-hot: over the last dimension of [rows, classes].
#include <algorithm>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::DType;
using mesh::TensorType;
using program::Op;
using program::ValueId;

struct Rows {
  Type type;
  int64_t width, rows, n, grain;

  explicit Rows(const TensorType& logits)
      : type(static_cast<Type>(logits.dtype)),
        width(DTypeBytes(logits.dtype)),
        n(logits.dims.back()) {
    rows = n == 0 ? 0 : logits.num_elements() / n;
    grain =
        std::max<int64_t>(1, kGrain / 8 / std::max<int64_t>(1, n));  // an exponential an element
  }
};

template <typename T>
KernelPtr DenseXent(const Rows& r, ValueId logits, ValueId labels, ValueId out) {
  // Row by row through log-softmax, in scratch.
  return MakeKernel(
      [=](const Frame& f) {
        f.For(r.rows, r.grain, [&](int64_t begin, int64_t end) {
          ActiveKernels().softmax(r.type, true, f.scratch + begin * r.n * r.width,
                                  f.at[logits] + begin * r.n * r.width, end - begin, r.n);
          T* terms = reinterpret_cast<T*>(f.scratch);
          for (int64_t i = begin * r.n; i < end * r.n; ++i) terms[i] *= f.As<const T>(labels)[i];
          for (int64_t row = begin; row < end; ++row) {
            T sum = 0;
            ActiveKernels().fold_row(Fold::kSum, r.type, &sum, terms + row * r.n, r.n);
            f.As<T>(out)[row] = -sum;
          }
        });
      },
      r.rows * r.n * r.width);
}

template <typename Label>
KernelPtr OneHot(int64_t rows, int64_t depth, DType dtype, ValueId labels, ValueId out) {
  const Element zero = ElementOf(dtype, 0), one = ElementOf(dtype, 1);
  const int64_t width = DTypeBytes(dtype);
  return MakeKernel([=](const Frame& f) {
    f.For(rows, std::max<int64_t>(1, kGrain / depth), [&](int64_t begin, int64_t end) {
      std::byte* to = f.at[out] + begin * depth * width;
      ActiveKernels().fill(to, zero.bytes, width, (end - begin) * depth);
      for (int64_t row = begin; row < end; ++row, to += depth * width) {
        const auto at = static_cast<int64_t>(f.As<const Label>(labels)[row]);
        if (at >= 0 && at < depth) std::copy_n(one.bytes, width, to + at * width);
      }
    });
  });
}

}  // namespace

KernelPtr MakeIndexKernel(const Making& making, const Op& op) {
  if (op.operands.empty()) return nullptr;
  const TensorType& first = making.local().type(op.operands[0]);
  const ValueId in = op.operands[0], out = op.results[0];
  if (op.kind == "softmax" || op.kind == "log_softmax") {
    const bool log = op.kind == "log_softmax";
    const Rows r(first);
    return MakeKernel([=](const Frame& f) {
      f.For(r.rows, r.grain, [&](int64_t begin, int64_t end) {
        const int64_t at = begin * r.n * r.width;
        ActiveKernels().softmax(r.type, log, f.at[out] + at, f.at[in] + at, end - begin, r.n);
      });
    });
  }
  if (op.kind == "sparse_softmax_cross_entropy" || op.kind == "sparse_softmax_cross_entropy_grad") {
    const bool grad = op.kind == "sparse_softmax_cross_entropy_grad";
    const Rows r(first);
    const TensorType& label_type = making.local().type(op.operands[1]);
    const Type labels = static_cast<Type>(label_type.dtype);
    const int64_t label_width = DTypeBytes(label_type.dtype);
    const ValueId label = op.operands[1], cotangent = grad ? op.operands[2] : in;
    return MakeKernel([=](const Frame& f) {
      f.For(r.rows, r.grain, [&](int64_t begin, int64_t end) {
        const int64_t at = begin * r.n * r.width;
        const std::byte* label_at = f.at[label] + begin * label_width;
        if (grad) {
          ActiveKernels().sparse_xent_grad(r.type, labels, f.at[out] + at,
                                           f.at[cotangent] + begin * r.width, f.at[in] + at,
                                           label_at, end - begin, r.n);
        } else {
          ActiveKernels().sparse_xent(r.type, labels, f.at[out] + begin * r.width, f.at[in] + at,
                                      label_at, end - begin, r.n);
        }
      });
    });
  }
  if (op.kind == "softmax_cross_entropy") {
    const Rows r(first);
    return first.dtype == DType::kF32 ? DenseXent<float>(r, in, op.operands[1], out)
                                      : DenseXent<double>(r, in, op.operands[1], out);
  }
  if (op.kind == "one_hot") {
    const TensorType& to = making.local().type(out);
    return first.dtype == DType::kI32
               ? OneHot<int32_t>(first.num_elements(), to.dims.back(), to.dtype, in, out)
               : OneHot<int64_t>(first.num_elements(), to.dims.back(), to.dtype, in, out);
  }
  return nullptr;
}

}  // namespace meshtrain::device::cpu
