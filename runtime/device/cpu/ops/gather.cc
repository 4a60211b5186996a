// Elements by numbers that another operand carries, and back: along the axis that the numbers count
// on, a device has its own part alone (registry.h, PlacedDim).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Op;
using program::ValueId;

// [outer, rows, inner] of which the rows are numbered, this device's from starts[device] on of
// `size` on all devices, and [outer, ids, inner].
struct Numbered {
  int64_t outer = 1, rows = 1, inner = 1, ids = 1, size = 1;
  std::vector<int64_t> starts;
  int64_t width = 4;
  bool wide_ids = false;

  Numbered(const Making& making, const Op& op, const TensorType& table, const TensorType& of_ids)
      : ids(of_ids.num_elements()),
        width(DTypeBytes(table.dtype)),
        wide_ids(of_ids.dtype == DType::kI64) {
    const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
    for (size_t d = 0; d < table.dims.size(); ++d) {
      (d < axis ? outer : d == axis ? rows : inner) *= table.dims[d];
    }
    size = op.attrs.Int("size", rows);
    for (const int64_t rank : making.ranks) {
      const std::vector<int64_t> at = making.mesh().Coordinates(rank);
      int64_t index = 0;
      for (const int64_t a : op.attrs.Ints("axes")) {
        index = index * making.mesh().axis(static_cast<int>(a)).size + at[a];
      }
      starts.push_back(index * rows);
    }
  }

  int64_t Id(const std::byte* from, int64_t i) const {
    return wide_ids ? reinterpret_cast<const int64_t*>(from)[i]
                    : reinterpret_cast<const int32_t*>(from)[i];
  }
  bool Inside(int64_t id) const { return id >= 0 && id < size; }
};

KernelPtr Gather(const Making& making, const Op& op) {
  const TensorType& table = making.local().type(op.operands[0]);
  const Numbered n(making, op, table, making.local().type(op.operands[1]));
  const Element none = ElementOf(table.dtype, 0);
  const Element wrong = ElementOf(table.dtype, std::numeric_limits<double>::quiet_NaN());
  const ValueId in = op.operands[0], of_ids = op.operands[1], out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    const int64_t start = n.starts[f.device], bytes = n.inner * n.width;
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n.inner));
    f.For(n.outer * n.ids, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::byte* to = f.at[out] + r * bytes;
        const int64_t id = n.Id(f.at[of_ids], r % n.ids);
        if (!n.Inside(id)) {
          ActiveKernels().fill(to, wrong.bytes, n.width, n.inner);
          continue;
        }
        const int64_t row = id - start;
        if (row >= 0 && row < n.rows) {
          if (bytes > 0) std::memcpy(to, f.at[in] + (r / n.ids * n.rows + row) * bytes, bytes);
        } else {
          ActiveKernels().fill(to, none.bytes, n.width, n.inner);
        }
      }
    });
  });
}

// Threads share columns, so that each element is added to in the order of the ids.
template <typename T>
KernelPtr ScatterAdd(const Making& making, const Op& op) {
  const Numbered n(making, op, making.local().type(op.results[0]),
                   making.local().type(op.operands[0]));
  const ValueId of_ids = op.operands[0], in = op.operands[1], out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    const int64_t start = n.starts[f.device];
    const std::byte* ids = f.at[of_ids];
    bool good = true;
    for (int64_t i = 0; i < n.ids; ++i) good = good && n.Inside(n.Id(ids, i));
    const T first = good ? T{0} : std::numeric_limits<T>::quiet_NaN();
    T* to = f.As<T>(out);
    const T* from = f.As<const T>(in);
    f.For(n.outer * n.rows * n.inner, kGrain,
          [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, first); });
    if (!good) return;
    // Columns in pieces of a cache line at least.
    constexpr int64_t kLeast = 16;
    const int64_t work = std::max<int64_t>(1, n.ids);
    const int64_t grain = std::max(kLeast, (kGrain / work + kLeast - 1) / kLeast * kLeast);
    for (int64_t o = 0; o < n.outer; ++o) {
      T* rows = to + o * n.rows * n.inner;
      const T* updates = from + o * n.ids * n.inner;
      f.For(n.inner, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < n.ids; ++i) {
          const int64_t row = n.Id(ids, i) - start;
          if (row < 0 || row >= n.rows) continue;
          T* sum = rows + row * n.inner;
          const T* more = updates + i * n.inner;
          for (int64_t c = begin; c < end; ++c) sum[c] += more[c];
        }
      });
    }
  });
}

KernelPtr ScatterSet(const Making& making, const Op& op) {
  const TensorType& type = making.local().type(op.results[0]);
  const Numbered n(making, op, type, making.local().type(op.operands[1]));
  const Element wrong = ElementOf(type.dtype, std::numeric_limits<double>::quiet_NaN());
  const ValueId in = op.operands[0], of_ids = op.operands[1], with = op.operands[2];
  const ValueId out = op.results[0];
  return MakeKernel(
      [=](const Frame& f) {
        const int64_t start = n.starts[f.device], bytes = n.inner * n.width;
        const std::byte* ids = f.at[of_ids];
        // Which update a row gets: the last that says it.
        auto* from = reinterpret_cast<int64_t*>(f.scratch);
        std::fill_n(from, n.rows, int64_t{-1});
        bool good = true;
        for (int64_t i = 0; i < n.ids; ++i) {
          const int64_t id = n.Id(ids, i);
          if (!n.Inside(id)) {
            good = false;
          } else if (id >= start && id - start < n.rows) {
            from[id - start] = i;
          }
        }
        if (bytes == 0) return;
        const int64_t grain = std::max<int64_t>(1, kGrain / n.inner);
        f.For(n.outer * n.rows, grain, [&](int64_t begin, int64_t end) {
          std::byte* to = f.at[out] + begin * bytes;
          if (good) {
            std::memcpy(to, f.at[in] + begin * bytes, (end - begin) * bytes);
          } else {
            ActiveKernels().fill(to, wrong.bytes, n.width, (end - begin) * n.inner);
          }
        });
        if (!good) return;
        f.For(n.outer * n.ids, grain, [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const int64_t i = r % n.ids, id = n.Id(ids, i);
            if (id < start || id - start >= n.rows || from[id - start] != i) continue;
            std::memcpy(f.at[out] + (r / n.ids * n.rows + id - start) * bytes,
                        f.at[with] + r * bytes, bytes);
          }
        });
      },
      n.rows * static_cast<int64_t>(sizeof(int64_t)));
}

// --- rows with ids of their own

// What lies in [begin, end) of rows of `length`, row by row: body(row, first, last).
template <typename Body>
void InRows(int64_t begin, int64_t end, int64_t length, const Body& body) {
  while (begin < end) {
    const int64_t row = begin / length, first = begin % length;
    const int64_t last = std::min(length, first + end - begin);
    body(row, first, last);
    begin += last - first;
  }
}

template <typename T, typename Id>
KernelPtr TakeAlong(const Making& making, const Op& op) {
  const TensorType& numbers = making.local().type(op.operands[1]);
  const Numbered n(making, op, making.local().type(op.operands[0]), numbers);
  const int64_t count = numbers.dims[op.attrs.Int("axis")];
  const ValueId in = op.operands[0], of_ids = op.operands[1], out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    const int64_t start = n.starts[f.device];
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n.inner));
    const auto take = [&](int64_t o, int64_t first, int64_t last) {
      const T* from = f.As<const T>(in) + o * n.rows * n.inner;
      for (int64_t i = first; i < last; ++i) {
        const Id* ids = f.As<const Id>(of_ids) + (o * count + i) * n.inner;
        T* to = f.As<T>(out) + (o * count + i) * n.inner;
        for (int64_t c = 0; c < n.inner; ++c) {
          if (!n.Inside(ids[c])) {
            to[c] = std::numeric_limits<T>::quiet_NaN();
          } else {
            const int64_t row = ids[c] - start;
            to[c] = row >= 0 && row < n.rows ? from[row * n.inner + c] : T{0};
          }
        }
      }
    };
    f.For(n.outer * count, grain,
          [&](int64_t begin, int64_t end) { InRows(begin, end, count, take); });
  });
}

// Threads share rows, so that each element is added to in the order of the ids.
template <typename T, typename Id>
KernelPtr AddAlong(const Making& making, const Op& op) {
  const TensorType& numbers = making.local().type(op.operands[0]);
  const Numbered n(making, op, making.local().type(op.results[0]), numbers);
  const int64_t count = numbers.dims[op.attrs.Int("axis")];
  const ValueId of_ids = op.operands[0], in = op.operands[1], out = op.results[0];
  return MakeKernel([=](const Frame& f) {
    const int64_t start = n.starts[f.device];
    const Id* ids = f.As<const Id>(of_ids);
    // Columns [begin, end) of one [rows, inner].
    const auto add = [&](int64_t o, int64_t begin, int64_t end) {
      T* to = f.As<T>(out) + o * n.rows * n.inner;
      for (int64_t row = 0; row < n.rows; ++row) {
        std::fill(to + row * n.inner + begin, to + row * n.inner + end, T{0});
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = (o * count + i) * n.inner;
        for (int64_t c = begin; c < end; ++c) {
          const int64_t id = ids[at + c];
          if (!n.Inside(id)) {
            for (int64_t row = 0; row < n.rows; ++row) {
              to[row * n.inner + c] = std::numeric_limits<T>::quiet_NaN();
            }
          } else if (id >= start && id - start < n.rows) {
            to[(id - start) * n.inner + c] += f.As<const T>(in)[at + c];
          }
        }
      }
    };
    // In pieces of a cache line at least, where columns are next to each other.
    constexpr int64_t kLeast = 16;
    const int64_t work = std::max<int64_t>(1, n.rows + count);
    const int64_t grain = std::max(kLeast, (kGrain / work + kLeast - 1) / kLeast * kLeast);
    f.For(n.outer * n.inner, n.inner == 1 ? std::max<int64_t>(1, kGrain / work) : grain,
          [&](int64_t begin, int64_t end) { InRows(begin, end, n.inner, add); });
  });
}

}  // namespace

KernelPtr MakeGatherKernel(const Making& making, const Op& op) {
  if (op.results.empty()) return nullptr;
  const bool wide = making.local().type(op.results[0]).dtype == DType::kF64;
  if (op.kind == "gather") return Gather(making, op);
  if (op.kind == "scatter_set") return ScatterSet(making, op);
  if (op.kind == "scatter_add") {
    return wide ? ScatterAdd<double>(making, op) : ScatterAdd<float>(making, op);
  }
  const bool take = op.kind == "take_along";
  if (!take && op.kind != "add_along") return nullptr;
  const auto of = [&](auto element) -> KernelPtr {
    using T = decltype(element);
    if (making.local().type(op.operands[take ? 1 : 0]).dtype == DType::kI64) {
      return take ? TakeAlong<T, int64_t>(making, op) : AddAlong<T, int64_t>(making, op);
    }
    return take ? TakeAlong<T, int32_t>(making, op) : AddAlong<T, int32_t>(making, op);
  };
  return wide ? of(double{}) : of(float{});
}

}  // namespace meshtrain::device::cpu
