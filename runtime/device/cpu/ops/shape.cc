// Ops that move elements.
#include <algorithm>
#include <numeric>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/strided.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::TensorType;
using program::Op;
using program::ValueId;

KernelPtr Copying(StridedCopy copy, ValueId from, ValueId to) {
  return MakeKernel([=](const Frame& f) { copy.Run(f, f.at[from], f.at[to]); });
}

int64_t Dot(const Dims& a, const Dims& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), int64_t{0});
}

KernelPtr SameElements(const TensorType& type, const Op& op) {
  const StridedCopy copy({type.num_elements()}, {1}, 0, {1}, 0, DTypeBytes(type.dtype));
  const ValueId from = op.operands[0], to = op.results[0];
  return MakeKernel([=](const Frame& f) {
    if (f.at[from] != f.at[to]) copy.Run(f, f.at[from], f.at[to]);
  });
}

KernelPtr Transposed(const TensorType& from, const TensorType& to, const Op& op) {
  const Dims strides = mesh::Strides(from.dims);
  Dims permuted;
  for (const int64_t d : op.attrs.Ints("permutation")) permuted.push_back(strides[d]);
  return Copying({to.dims, permuted, 0, mesh::Strides(to.dims), 0, DTypeBytes(to.dtype)},
                 op.operands[0], op.results[0]);
}

KernelPtr Sliced(const TensorType& from, const TensorType& to, const Op& op) {
  const Dims strides = mesh::Strides(from.dims);
  return Copying({to.dims, strides, Dot(op.attrs.Ints("starts"), strides), mesh::Strides(to.dims),
                  0, DTypeBytes(to.dtype)},
                 op.operands[0], op.results[0]);
}

KernelPtr Padded(const TensorType& from, const TensorType& to, const Op& op) {
  const Dims strides = mesh::Strides(to.dims);
  const StridedCopy copy(from.dims, mesh::Strides(from.dims), 0, strides,
                         Dot(op.attrs.Ints("before"), strides), DTypeBytes(to.dtype));
  const Element value = ElementOf(to.dtype, op.attrs.Double("value"));
  const int64_t width = DTypeBytes(to.dtype), n = to.num_elements();
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    f.For(n, kGrain, [&](int64_t begin, int64_t end) {
      ActiveKernels().fill(f.at[out] + begin * width, value.bytes, width, end - begin);
    });
    copy.Run(f, f.at[in], f.at[out]);
  });
}

// Parts that stand in their places, between zeros: their bits together.
KernelPtr Overlaid(const TensorType& to, const Op& op) {
  const int64_t bytes = to.num_bytes();
  const std::vector<ValueId> parts = op.operands;
  const ValueId out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    f.For(bytes, kGrain * 4, [&](int64_t begin, int64_t end) {
      std::byte* whole = f.at[out];
      if (f.at[parts[0]] != whole) {
        std::copy(f.at[parts[0]] + begin, f.at[parts[0]] + end, whole + begin);
      }
      for (size_t p = 1; p < parts.size(); ++p) {
        const std::byte* part = f.at[parts[p]];
        for (int64_t i = begin; i < end; ++i) whole[i] |= part[i];
      }
    });
  });
}

KernelPtr Reversed(const TensorType& type, const Op& op) {
  const Dims strides = mesh::Strides(type.dims);
  Dims back = strides;
  int64_t last = 0;
  for (const int64_t axis : op.attrs.Ints("axes")) {
    back[axis] = -strides[axis];
    last += std::max<int64_t>(0, type.dims[axis] - 1) * strides[axis];
  }
  return Copying({type.dims, back, last, strides, 0, DTypeBytes(type.dtype)}, op.operands[0],
                 op.results[0]);
}

KernelPtr Joined(const Making& making, const TensorType& to, const Op& op) {
  const int64_t axis = op.attrs.Int("axis");
  const Dims strides = mesh::Strides(to.dims);
  std::vector<std::pair<ValueId, StridedCopy>> parts;
  int64_t at = 0;
  for (const ValueId v : op.operands) {
    const Dims& dims = making.local().type(v).dims;
    parts.emplace_back(v, StridedCopy(dims, mesh::Strides(dims), 0, strides, at * strides[axis],
                                      DTypeBytes(to.dtype)));
    at += dims[axis];
  }
  const ValueId out = op.results[0];
  return MakeKernel([=, parts = std::move(parts)](const Frame& f) {
    for (const auto& [from, copy] : parts) copy.Run(f, f.at[from], f.at[out]);
  });
}

}  // namespace

KernelPtr MakeShapeKernel(const Making& making, const Op& op) {
  const TensorType& to = making.local().type(op.results[0]);
  if (op.kind == "concat") {
    return op.attrs.Bool("overlaid") ? Overlaid(to, op) : Joined(making, to, op);
  }
  if (op.operands.empty()) return nullptr;
  const TensorType& from = making.local().type(op.operands[0]);
  if (op.kind == "reshape") return SameElements(from, op);
  if (op.kind == "transpose") return Transposed(from, to, op);
  if (op.kind == "slice") return Sliced(from, to, op);
  if (op.kind == "reverse") return Reversed(to, op);
  if (op.kind == "pad") return Padded(from, to, op);
  return nullptr;
}

}  // namespace meshtrain::device::cpu
