// Elements in order along an axis, and where they stood; which order that is,
// runtime/program/ops/sort.cc says.
//
// An element becomes a whole number that counts up as the order does, and beside it goes its place,
// so that no two are equal and any way of sorting gives the same.
#include <algorithm>
#include <bit>
#include <compare>
#include <limits>

#include "runtime/device/cpu/kernel.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::TensorType;
using program::Op;
using program::ValueId;

template <typename T, typename Bits>
Bits FloatKey(T v) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  if (v != v) return ~Bits{0};
  const auto bits = std::bit_cast<Bits>(v == 0 ? T{0} : v);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
uint32_t Key(float v) { return FloatKey<float, uint32_t>(v); }
uint64_t Key(double v) { return FloatKey<double, uint64_t>(v); }
uint32_t Key(uint8_t v) { return v; }
uint32_t Key(int32_t v) { return static_cast<uint32_t>(v) ^ (uint32_t{1} << 31); }
uint64_t Key(int64_t v) { return static_cast<uint64_t>(v) ^ (uint64_t{1} << 63); }

// A key of 32 bits and a place, as one number.
struct NarrowItem {
  uint64_t both;
  NarrowItem(uint64_t key, int64_t place) : both(key << 32 | static_cast<uint64_t>(place)) {}
  int64_t place() const { return static_cast<int64_t>(both & 0xFFFFFFFF); }
  friend auto operator<=>(const NarrowItem&, const NarrowItem&) = default;
};
struct WideItem {
  uint64_t key;
  int64_t at;
  WideItem(uint64_t k, int64_t place) : key(k), at(place) {}
  int64_t place() const { return at; }
  friend auto operator<=>(const WideItem&, const WideItem&) = default;
};

// [outer, n, inner], of which the middle is put in order.
struct Lanes {
  int64_t outer = 1, n = 1, inner = 1, count = 1;
  int64_t slots = 1;  // of scratch: what may be under way at a time
};

// Where so many times fewer are wanted than there are, most are only looked at.
constexpr int64_t kFew = 8;

// The first `count` of n items, in order.
template <typename Item, typename At>
void First(Item* items, const At& at, int64_t n, int64_t count) {
  for (int64_t i = 0; i < count; ++i) items[i] = at(i);
  std::make_heap(items, items + count);  // the last of them in front
  for (int64_t i = count; i < n; ++i) {
    const Item item = at(i);
    if (count == 0 || !(item < items[0])) continue;
    std::pop_heap(items, items + count);
    items[count - 1] = item;
    std::push_heap(items, items + count);
  }
  std::sort_heap(items, items + count);
}

template <typename T, typename Item>
KernelPtr InOrder(const Op& op, const Lanes& l) {
  const bool descending = op.attrs.Bool("descending"), places = op.kind == "argsort";
  const ValueId in = op.operands[0], out = op.results[0];
  return MakeKernel(
      [=](const Frame& f) {
        const int64_t lanes = l.outer * l.inner;
        f.For(l.slots, 1, [&](int64_t begin, int64_t end) {
          auto* items = reinterpret_cast<Item*>(f.scratch) + begin * l.n;
          for (int64_t lane = lanes * begin / l.slots; lane < lanes * end / l.slots; ++lane) {
            const int64_t o = lane / l.inner, c = lane % l.inner;
            const T* from = f.As<const T>(in) + o * l.n * l.inner + c;
            const auto item = [&](int64_t i) {
              const auto key = Key(from[i * l.inner]);
              return Item(descending ? static_cast<decltype(key)>(~key) : key, i);
            };
            if (l.count <= l.n / kFew) {
              First(items, item, l.n, l.count);
            } else {
              for (int64_t i = 0; i < l.n; ++i) items[i] = item(i);
              if (l.count < l.n) std::nth_element(items, items + l.count, items + l.n);
              std::sort(items, items + l.count);
            }
            const int64_t to = o * l.count * l.inner + c;
            for (int64_t i = 0; i < l.count; ++i) {
              if (places) {
                f.As<int64_t>(out)[to + i * l.inner] = items[i].place();
              } else {
                f.As<T>(out)[to + i * l.inner] = from[items[i].place() * l.inner];
              }
            }
          }
        });
      },
      l.slots * l.n * static_cast<int64_t>(sizeof(Item)));
}

template <typename T>
KernelPtr OfType(const Op& op, const Lanes& l) {
  if (sizeof(T) <= 4 && l.n <= std::numeric_limits<uint32_t>::max()) {
    return InOrder<T, NarrowItem>(op, l);
  }
  return InOrder<T, WideItem>(op, l);
}

}  // namespace

KernelPtr MakeSortKernel(const Making& making, const Op& op) {
  if (op.kind != "sort" && op.kind != "argsort") return nullptr;
  const TensorType& type = making.local().type(op.operands[0]);
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  Lanes l{.count = making.local().type(op.results[0]).dims[axis]};
  for (size_t d = 0; d < type.dims.size(); ++d) {
    (d < axis ? l.outer : d == axis ? l.n : l.inner) *= type.dims[d];
  }
  const int64_t most =
      std::max<int64_t>(1, std::min<int64_t>(l.outer * l.inner, 4 * making.threads));
  l.slots = std::clamp<int64_t>(type.num_elements() / (kGrain / 8), 1, most);
  switch (type.dtype) {
    case DType::kU8:
      return OfType<uint8_t>(op, l);
    case DType::kI32:
      return OfType<int32_t>(op, l);
    case DType::kI64:
      return OfType<int64_t>(op, l);
    case DType::kF32:
      return OfType<float>(op, l);
    case DType::kF64:
      return OfType<double>(op, l);
    default:
      break;
  }
  return nullptr;
}

}  // namespace meshtrain::device::cpu
