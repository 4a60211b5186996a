// Functions that record other ops (program/ops.h), drawn as ops are: whole groups of slices, pads,
// concats and reductions that stand on each other, which ops drawn one by one seldom do.
#include <algorithm>
#include <iterator>

#include "tests/support/random/drawer.h"

namespace meshtrain::testing::random {
namespace {

using Compose = Value (*)(Drawer& d, Value x, int64_t axis);

// Of `x` with at least 2 elements along `axis`.
constexpr Compose kFloats[] = {
    [](Drawer&, Value x, int64_t axis) { return program::LogSumExp(x, {axis}); },
    [](Drawer& d, Value x, int64_t axis) {
      return program::TopK(x, 1 + static_cast<int64_t>(d.Pick(x.dims()[axis])), axis).values;
    },
    [](Drawer& d, Value x, int64_t axis) {
      return program::CumSum(x, axis, d.Chance(0.5), d.Chance(0.5));
    },
    [](Drawer&, Value x, int64_t axis) { return program::ReduceProd(x, {axis}, true); },
    [](Drawer& d, Value x, int64_t) { return program::Elu(x, d.Chance(0.5) ? 1 : 0.5); },
    [](Drawer&, Value x, int64_t) { return program::LeakyRelu(x, 0.25); },
    [](Drawer&, Value x, int64_t) { return program::Silu(x); },
    [](Drawer&, Value x, int64_t) { return program::Select(program::IsFinite(x), x, 0.0); },
};
constexpr Compose kNumbers[] = {
    [](Drawer&, Value x, int64_t axis) { return program::ArgMin(x, axis); },
    [](Drawer& d, Value x, int64_t axis) {
      return program::Roll(x, 1 + static_cast<int64_t>(d.Pick(x.dims()[axis] - 1)), axis);
    },
    [](Drawer& d, Value x, int64_t axis) {
      const auto first = static_cast<int64_t>(1 + d.Pick(x.dims()[axis] - 1));
      const auto parts = program::Split(x, {first, x.dims()[axis] - first}, axis);
      return parts[d.Pick(2)];
    },
    [](Drawer& d, Value x, int64_t axis) {
      return program::Stack({x, x, x}, d.Chance(0.5) ? axis : -1);
    },
    [](Drawer&, Value x, int64_t axis) {
      std::vector<int64_t> repeats(x.rank(), 1);
      repeats[axis] = 2;
      return program::Tile(x, repeats);
    },
    [](Drawer& d, Value x, int64_t axis) {
      const auto step = static_cast<int64_t>(1 + d.Pick(3));
      const int64_t start = std::min<int64_t>(static_cast<int64_t>(d.Pick(2)), x.dims()[axis] - 1);
      return program::StridedSlice(x, start, step, (x.dims()[axis] - 1 - start) / step + 1, axis);
    },
};

}  // namespace

void Drawer::TryComposed() {
  const auto some = Some([&](const Known& v) {
    const Dims& dims = v.value.dims();
    return v.value.dtype() != DType::kBool && v.value.rank() >= 1 && v.value.rank() <= 3 &&
           std::any_of(dims.begin(), dims.end(), [](int64_t n) { return n >= 2 && n <= 64; }) &&
           mesh::NumElements(dims) * 4 <= options_.most_elements;
  });
  if (!some) return;
  const Value x = some->value;
  std::vector<int64_t> axes;
  for (int d = 0; d < x.rank(); ++d) {
    if (x.dims()[d] >= 2 && x.dims()[d] <= 64) axes.push_back(d);
  }
  const bool real = mesh::IsFloat(x.dtype()) && some->high < 6 && some->low > -6;
  const size_t count = std::size(kNumbers) + (real ? std::size(kFloats) : 0);
  const size_t which = Pick(count);
  const Compose compose =
      which < std::size(kNumbers) ? kNumbers[which] : kFloats[which - std::size(kNumbers)];
  const program::Builder::Scope scope(builder_);
  // One among many, with more ways to be a part of chains than any other.
  const Value y = compose(*this, x, OneOf(axes));
  if (Evaluate() && IsUsable(arrays_[y.id()])) Use(y);
}

void Drawer::TryMeans() {
  const auto some = Some([](const Known& v) {
    return mesh::IsFloat(v.value.dtype()) && v.value.rank() >= 1 && v.high < 100 && v.low > -100;
  });
  const auto side = static_cast<int64_t>(2 + Pick(47));
  const Value x = some && Chance(0.6) ? some->value : Fresh({FloatDType(), {side, side}}, "wide");
  const program::Builder::Scope scope(builder_);
  const Value centred = Chance(0.7) ? x * 0.5 : x;
  const int last = x.rank() - 1;
  std::vector<int64_t> axes;
  if (last > 0 && Chance(0.5)) {
    for (int axis = 0; axis < last; ++axis) axes.push_back(axis);
  } else {
    axes.push_back(last);
  }
  const bool square = last == 1 && x.dims()[0] == x.dims()[1];
  const bool keeps = axes[0] == last && !(square && Chance(0.5));
  const Value sum = program::ReduceSum(centred, axes, keeps);
  const int64_t count = mesh::NumElements(x.dims()) / mesh::NumElements(sum.dims());
  const Value y = centred - sum * (1.0 / static_cast<double>(count));
  if (Evaluate() && IsUsable(arrays_[y.id()])) Use(y);
}

}  // namespace meshtrain::testing::random
