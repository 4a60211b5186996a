// Reductions, argmax and the count of what is beyond a limit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"
#include "runtime/device/cpu/strided.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Op;
using program::ValueId;

// Elements folded at a time. Part of the result (the order of adding), so it depends on nothing.
constexpr int64_t kPart = 8192;

// A tensor as [outer, fold, inner], of which the middle is reduced.
struct Shape3 {
  int64_t outer = 1, fold = 1, inner = 1;
};

// False when the reduced dimensions are not neighbours.
bool AsShape3(const Dims& dims, const std::vector<bool>& reduced, Shape3* s) {
  int state = 0;  // before, in, after the reduced ones
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    if (reduced[d]) {
      if (state == 2) return false;
      state = 1;
      s->fold *= dims[d];
    } else {
      if (state == 1) state = 2;
      (state == 2 ? s->inner : s->outer) *= dims[d];
    }
  }
  if (s->fold == 1) *s = {1, 1, s->outer * s->inner};
  return true;
}

Element Identity(Fold fold, DType dtype) {
  if (fold == Fold::kSum) return ElementOf(dtype, 0);
  const bool max = fold == Fold::kMax;
  switch (dtype) {
    case DType::kI32: {
      const int32_t v =
          max ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
      return ElementOf(dtype, v);
    }
    case DType::kI64: {
      const int64_t v =
          max ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
      Element e;
      std::copy_n(reinterpret_cast<const std::byte*>(&v), sizeof v, e.bytes);
      return e;
    }
    case DType::kU8:
    case DType::kBool:
      return ElementOf(dtype, max ? 0 : dtype == DType::kU8 ? 255 : 1);
    default: {
      const double infinity = std::numeric_limits<double>::infinity();
      return ElementOf(dtype, max ? -infinity : infinity);
    }
  }
}

// Folds [fold, inner] in parts of whole rows, then the parts in order: the same order whatever the
// threads. The parts of a sum of floating-point numbers are in f64, so that it is rounded to its
// type once.
class Folding {
 public:
  Folding(Fold fold, DType dtype, Shape3 s)
      : fold_(fold),
        type_(static_cast<Type>(dtype)),
        s_(s),
        width_(DTypeBytes(dtype)),
        real_sum_(fold == Fold::kSum && (dtype == DType::kF32 || dtype == DType::kF64)),
        part_width_(real_sum_ ? static_cast<int64_t>(sizeof(double)) : width_),
        empty_(Identity(fold, dtype)) {
    rows_ = s.inner >= kPart ? s.fold : std::max<int64_t>(1, kPart / std::max<int64_t>(1, s.inner));
    // Cut columns where there are many, rows where there are few.
    columns_ = s.inner >= 128;
    parts_ = s.fold == 0 || columns_ ? 1 : (s.fold + rows_ - 1) / rows_;
  }

  int64_t scratch_bytes() const {
    return parts_ > 1 ? s_.outer * parts_ * s_.inner * part_width_ : 0;
  }

  void Run(const Frame& f, const std::byte* from, std::byte* to) const {
    const Kernels& k = ActiveKernels();
    if (s_.fold == 0) {
      k.fill(to, empty_.bytes, width_, s_.outer * s_.inner);
      return;
    }
    const int64_t work = s_.fold * s_.inner;  // of one outer index
    if (columns_) {
      for (int64_t o = 0; o < s_.outer; ++o) {
        const int64_t grain = std::max<int64_t>(64, (kGrain / s_.fold + 63) / 64 * 64);
        f.For(s_.inner, grain, [&](int64_t begin, int64_t end) {
          k.fold_rows(fold_, type_, to + (o * s_.inner + begin) * width_,
                      from + (o * work + begin) * width_, s_.fold, s_.inner, end - begin, true);
        });
      }
      return;
    }
    const bool several = parts_ > 1;
    std::byte* parts = several ? f.scratch : to;
    const int64_t width = several ? part_width_ : width_;
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, rows_ * s_.inner));
    f.For(s_.outer * parts_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % parts_ * rows_;
        std::byte* part = parts + i * s_.inner * width;
        const std::byte* block = from + (i / parts_ * work + row * s_.inner) * width_;
        const int64_t rows = std::min(rows_, s_.fold - row);
        if (several && real_sum_) {
          SumBlock(part, block, rows);
        } else {
          FoldBlock(part, block, rows);
        }
      }
    });
    if (!several) return;
    for (int64_t o = 0; o < s_.outer; ++o) {
      std::byte* out = to + o * s_.inner * width_;
      std::byte* mine = parts + o * parts_ * s_.inner * part_width_;
      if (real_sum_) {
        AddParts(type_, reinterpret_cast<double*>(mine), parts_, s_.inner, s_.inner, out);
      } else {
        FoldBlock(out, mine, parts_);
      }
    }
  }

 private:
  void SumBlock(std::byte* to, const std::byte* from, int64_t rows) const {
    auto* sums = reinterpret_cast<double*>(to);
    if (s_.inner == 1) {
      ActiveKernels().sum_row(type_, sums, from, rows);
    } else {
      ActiveKernels().sum_rows(type_, sums, from, rows, s_.inner, s_.inner, true);
    }
  }
  void FoldBlock(std::byte* to, const std::byte* from, int64_t rows) const {
    if (s_.inner == 1) {
      ActiveKernels().fold_row(fold_, type_, to, from, rows);
    } else {
      ActiveKernels().fold_rows(fold_, type_, to, from, rows, s_.inner, s_.inner, true);
    }
  }

  Fold fold_;
  Type type_;
  Shape3 s_;
  int64_t width_;
  bool real_sum_;
  int64_t part_width_;
  Element empty_;
  int64_t rows_;  // of one part
  int64_t parts_;
  bool columns_;
};

KernelPtr Reduction(const Making& making, const Op& op, Fold fold) {
  const TensorType& from = making.local().type(op.operands[0]);
  std::vector<bool> reduced(from.dims.size(), false);
  for (const int64_t axis : op.attrs.Ints("axes")) reduced[axis] = true;
  const ValueId in = op.operands[0], out = op.results[0];
  Shape3 s;
  if (AsShape3(from.dims, reduced, &s)) {
    const Folding folding(fold, from.dtype, s);
    return MakeKernel([=](const Frame& f) { folding.Run(f, f.at[in], f.at[out]); },
                      folding.scratch_bytes());
  }
  // The reduced dimensions are brought together first.
  const Dims strides = mesh::Strides(from.dims);
  Dims sizes, order;
  Shape3 moved;
  for (const bool want : {false, true}) {
    for (size_t d = 0; d < from.dims.size(); ++d) {
      if (reduced[d] != want) continue;
      sizes.push_back(from.dims[d]);
      order.push_back(strides[d]);
      (want ? moved.fold : moved.outer) *= from.dims[d];
    }
  }
  const StridedCopy copy(sizes, order, 0, mesh::Strides(sizes), 0, DTypeBytes(from.dtype));
  const Folding folding(fold, from.dtype, moved);
  const int64_t copied = (from.num_bytes() + 63) / 64 * 64;
  return MakeKernel(
      [=](const Frame& f) {
        copy.Run(f, f.at[in], f.scratch);
        Frame rest = f;
        rest.scratch += copied;
        folding.Run(rest, f.scratch, f.at[out]);
      },
      copied + folding.scratch_bytes());
}

template <typename T>
KernelPtr ArgMax(Shape3 s, ValueId in, ValueId out) {
  return MakeKernel([=](const Frame& f) {
    const T* a = f.As<const T>(in);
    int64_t* best = f.As<int64_t>(out);
    f.For(s.outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, s.fold * s.inner)),
          [&](int64_t begin, int64_t end) {
            for (int64_t o = begin; o < end; ++o) {
              for (int64_t i = 0; i < s.inner; ++i) {
                const T* row = a + o * s.fold * s.inner + i;
                int64_t at = 0;
                T top = row[0];
                for (int64_t j = 1; j < s.fold; ++j) {
                  // The first of equals; a NaN is larger than any number.
                  const T v = row[j * s.inner];
                  if (v > top || (v != v && top == top)) {
                    top = v;
                    at = j;
                  }
                }
                best[o * s.inner + i] = at;
              }
            }
          });
  });
}

KernelPtr ArgMaxOf(const Making& making, const Op& op) {
  const TensorType& from = making.local().type(op.operands[0]);
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  Shape3 s;
  for (size_t d = 0; d < from.dims.size(); ++d) {
    (d < axis ? s.outer : d == axis ? s.fold : s.inner) *= from.dims[d];
  }
  const ValueId in = op.operands[0], out = op.results[0];
  switch (from.dtype) {
    case DType::kF32:
      return ArgMax<float>(s, in, out);
    case DType::kF64:
      return ArgMax<double>(s, in, out);
    case DType::kI32:
      return ArgMax<int32_t>(s, in, out);
    case DType::kI64:
      return ArgMax<int64_t>(s, in, out);
    default:
      return ArgMax<uint8_t>(s, in, out);
  }
}

KernelPtr CountBeyondOf(const Making& making, const Op& op) {
  // A loop of so little work that it is worth a second thread only from here on.
  constexpr int64_t kCountGrain = 4 * kGrain;
  const TensorType& from = making.local().type(op.operands[0]);
  const double limit = WithinType(from.dtype, op.attrs.Double("limit"));
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel([=, bounds = making.bounds](const Frame& f) {
    std::atomic<int64_t> count = 0;
    if (bounds->Within(f.device, in)) {
      *f.As<float>(out) = 0;
      return;
    }
    const int64_t width = DTypeBytes(from.dtype);
    f.For(from.num_elements(), kCountGrain, [&](int64_t begin, int64_t end) {
      count += ActiveKernels().count_beyond(static_cast<Type>(from.dtype), f.at[in] + begin * width,
                                            end - begin, limit);
    });
    *f.As<float>(out) = static_cast<float>(count.load());
  });
}

}  // namespace

KernelPtr MakeReduceKernel(const Making& making, const Op& op) {
  if (const std::optional<Fold> fold = FoldOf(op)) return Reduction(making, op, *fold);
  if (op.kind == "argmax") return ArgMaxOf(making, op);
  if (op.kind == "count_beyond") return CountBeyondOf(making, op);
  return nullptr;
}

std::optional<Fold> FoldOf(const Op& op) {
  if (op.kind == "reduce_sum") return Fold::kSum;
  if (op.kind == "reduce_max") return Fold::kMax;
  if (op.kind == "reduce_min") return Fold::kMin;
  return std::nullopt;
}

void AddParts(Type type, double* parts, int64_t count, int64_t stride, int64_t n, std::byte* to) {
  for (int64_t p = 1; p < count; ++p) {
    for (int64_t j = 0; j < n; ++j) parts[j] += parts[p * stride + j];
  }
  if (type == Type::kF64) {
    std::copy_n(parts, n, reinterpret_cast<double*>(to));
    return;
  }
  auto* sums = reinterpret_cast<float*>(to);
  for (int64_t j = 0; j < n; ++j) sums[j] = static_cast<float>(parts[j]);
}

}  // namespace meshtrain::device::cpu
