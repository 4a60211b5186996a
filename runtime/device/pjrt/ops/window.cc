// Windows that slide (program/ops/window.cc says what they are). Convolutions and their gradients
// are XLA's own; sums and maxima go tap by tap, so that which of equals counts, and where a NaN
// goes, is as on the CPU.
#include <cmath>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

struct Windows {
  std::vector<int64_t> sizes, strides, dilations, low, high;
  Dims elements, positions;  // spatial

  size_t spatial() const { return sizes.size(); }
  int64_t taps() const {
    int64_t n = 1;
    for (const int64_t size : sizes) n *= size;
    return n;
  }
  // From the first element that a window sees to the one behind its last.
  int64_t reach(size_t d) const { return (sizes[d] - 1) * dilations[d]; }
  int64_t covered(size_t d) const { return (positions[d] - 1) * strides[d]; }
};

Windows WindowsOf(const Op& op, const Dims& elements, const Dims& positions,
                  std::vector<int64_t> sizes) {
  Windows w{.sizes = std::move(sizes),
            .strides = op.attrs.Ints("strides"),
            .dilations = op.attrs.Ints("dilations"),
            .low = op.attrs.Ints("low"),
            .high = op.attrs.Ints("high"),
            .elements = {},
            .positions = {}};
  w.elements.assign(elements.begin() + 1, elements.end() - 1);
  w.positions.assign(positions.begin() + 1, positions.end() - 1);
  return w;
}

std::vector<int64_t> KernelSizes(const Dims& kernel) { return {kernel.begin(), kernel.end() - 2}; }

// --- convolutions

void Conv(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0), kernel = l.In(op, 1);
  const Dims& result = l.type(op.results[0]).dims;
  const Windows w = WindowsOf(op, x.dims, result, KernelSizes(kernel.dims));
  Module::Convolution c;
  c.strides = w.strides;
  c.right_dilations = w.dilations;
  c.left_dilations.assign(w.spatial(), 1);
  for (size_t d = 0; d < w.spatial(); ++d) {
    // What of the padding no window reaches is left out.
    c.pads.emplace_back(w.low[d], w.covered(d) + w.reach(d) + 1 - w.elements[d] - w.low[d]);
  }
  c.feature_groups = x.dims.back() / kernel.dims[w.spatial()];
  l.Set(op.results[0], l.m().Convolve(x, kernel, c, result));
}

// The cotangents, spread out by the strides, under the kernel turned round.
void ConvInputGrad(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node dy = l.In(op, 0), kernel = l.In(op, 1);
  const Dims& result = l.type(op.results[0]).dims;
  const Windows w = WindowsOf(op, result, dy.dims, KernelSizes(kernel.dims));
  const size_t s = w.spatial();
  const int64_t of_group = kernel.dims[s], features = kernel.dims[s + 1];
  const int64_t groups = result.back() / of_group, each = features / groups;
  // [K..., C/G, F] -> [K..., C/G, G, F/G] -> [K..., F/G, G, C/G] -> [K..., F/G, C]
  Dims cut(w.sizes.begin(), w.sizes.end()), turned = cut;
  cut.insert(cut.end(), {of_group, groups, each});
  turned.insert(turned.end(), {each, groups * of_group});
  std::vector<int64_t> order;
  for (size_t d = 0; d < s; ++d) order.push_back(static_cast<int64_t>(d));
  const auto behind = static_cast<int64_t>(s);
  order.insert(order.end(), {behind + 2, behind + 1, behind});
  const Node other = m.Reshape(m.Transpose(m.Reshape(kernel, cut), order), turned);
  Module::Convolution c;
  c.strides.assign(s, 1);
  c.left_dilations = w.strides;
  c.right_dilations = w.dilations;
  for (size_t d = 0; d < s; ++d) {
    const int64_t before = w.reach(d) - w.low[d];
    c.pads.emplace_back(before, w.elements[d] + w.reach(d) - w.covered(d) - 1 - before);
  }
  c.feature_groups = groups;
  c.reversed = true;
  l.Set(op.results[0], m.Convolve(dy, other, c, result));
}

// The cotangents as a kernel over the elements: examples are summed over, channels are the batch.
void ConvFilterGrad(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0), dy = l.In(op, 1);
  const Dims& result = l.type(op.results[0]).dims;
  const Windows w = WindowsOf(op, x.dims, dy.dims, KernelSizes(result));
  const size_t s = w.spatial();
  Module::Convolution c;
  c.strides = w.dilations;
  c.right_dilations = w.strides;
  c.left_dilations.assign(s, 1);
  for (size_t d = 0; d < s; ++d) {
    c.pads.emplace_back(w.low[d], w.reach(d) + w.covered(d) + 1 - w.elements[d] - w.low[d]);
  }
  c.batch_groups = x.dims.back() / result[s];
  c.of_filter = true;
  l.Set(op.results[0], l.m().Convolve(x, dy, c, result));
}

// --- sums and maxima, tap by tap

class TapByTap {
 public:
  TapByTap(Lowering& l, const Op& op, const Dims& elements, const Dims& positions)
      : m_(l.m()), w_(WindowsOf(op, elements, positions, op.attrs.Ints("sizes"))) {
    elements_ = elements;
    positions_ = positions;
  }
  int64_t taps() const { return w_.taps(); }
  const Dims& positions() const { return positions_; }

  // With what lies outside.
  Node Padded(const Node& x, double outside) {
    Dims before(x.dims.size(), 0), after = before;
    for (size_t d = 0; d < w_.spatial(); ++d) {
      before[d + 1] = w_.low[d];
      after[d + 1] = w_.high[d];
    }
    return m_.Pad(x, m_.Splat(x.element, {}, outside), before, after);
  }
  // What each position sees through a tap.
  Node Seen(const Node& padded, int64_t tap) {
    Dims starts(padded.dims.size(), 0), steps(padded.dims.size(), 1);
    const std::vector<int64_t> k = TapAt(tap);
    for (size_t d = 0; d < w_.spatial(); ++d) {
      starts[d + 1] = k[d] * w_.dilations[d];
      steps[d + 1] = w_.strides[d];
    }
    return m_.StridedSlice(padded, starts, steps, positions_);
  }
  // The other way: a value for each position, at the element that it sees through a tap; zeros
  // elsewhere.
  Node Spread(const Node& values, int64_t tap) {
    Dims before(values.dims.size(), 0), after = before, between = before, cut = before;
    const std::vector<int64_t> k = TapAt(tap);
    for (size_t d = 0; d < w_.spatial(); ++d) {
      before[d + 1] = k[d] * w_.dilations[d];
      between[d + 1] = w_.strides[d] - 1;
      after[d + 1] = w_.low[d] + w_.elements[d] + w_.high[d] - before[d + 1] - w_.covered(d) - 1;
      cut[d + 1] = w_.low[d];
    }
    const Node spread =
        m_.PadBetween(values, m_.Splat(values.element, {}, 0), before, after, between);
    return m_.Slice(spread, cut, elements_);
  }
  // For each position the tap of its largest element: the first of equals, a NaN before all; -1
  // where it sees padding alone.
  Node Largest(const Node& x) {
    const Node padded = Padded(x, -HUGE_VAL);
    const Node inside = Padded(m_.Like(x, 1), 0);
    Node top = m_.Splat(x.element, positions_, -HUGE_VAL);
    Node chosen = m_.Splat("i32", positions_, -1);
    for (int64_t tap = 0; tap < taps(); ++tap) {
      const Node v = Seen(padded, tap);
      const Node none = m_.Compare("LT", chosen, m_.Like(chosen, 0));
      const Node first_nan = m_.Binary("and", m_.Compare("NE", v, v), m_.Compare("EQ", top, top));
      Node better = m_.Binary("or", m_.Compare("GT", v, top), m_.Binary("or", none, first_nan));
      better = m_.Binary("and", better, m_.Compare("GT", Seen(inside, tap), m_.Like(v, 0)));
      top = m_.Select(better, v, top);
      chosen = m_.Select(better, m_.Like(chosen, static_cast<double>(tap)), chosen);
    }
    return chosen;
  }
  // `value` where a position has chosen the tap, else `other`.
  Node Where(const Node& chosen, int64_t tap, const Node& value, const Node& other) {
    return m_.Select(m_.Compare("EQ", chosen, m_.Like(chosen, static_cast<double>(tap))), value,
                     other);
  }

 private:
  std::vector<int64_t> TapAt(int64_t tap) const {
    std::vector<int64_t> k(w_.spatial());
    for (size_t d = w_.spatial(); d-- > 0; tap /= w_.sizes[d]) k[d] = tap % w_.sizes[d];
    return k;
  }

  Module& m_;
  Windows w_;
  Dims elements_, positions_;
};

void WindowSum(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0);
  TapByTap taps(l, op, x.dims, l.type(op.results[0]).dims);
  const Node padded = taps.Padded(x, 0);
  Node sum = l.m().Splat(x.element, taps.positions(), 0);
  for (int64_t t = 0; t < taps.taps(); ++t) sum = l.m().Binary("add", sum, taps.Seen(padded, t));
  l.Set(op.results[0], sum);
}

void WindowSumGrad(Lowering& l, const Op& op) {
  const Node dy = l.In(op, 0);
  const Dims& elements = l.type(op.results[0]).dims;
  TapByTap taps(l, op, elements, dy.dims);
  Node sum = l.m().Splat(dy.element, elements, 0);
  for (int64_t t = 0; t < taps.taps(); ++t) sum = l.m().Binary("add", sum, taps.Spread(dy, t));
  l.Set(op.results[0], sum);
}

void WindowMax(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0);
  TapByTap taps(l, op, x.dims, l.type(op.results[0]).dims);
  const Node padded = taps.Padded(x, -HUGE_VAL);
  Node top = l.m().Splat(x.element, taps.positions(), -HUGE_VAL);
  for (int64_t t = 0; t < taps.taps(); ++t) {
    top = l.m().Binary("maximum", top, taps.Seen(padded, t));
  }
  l.Set(op.results[0], top);
}

void WindowMaxGrad(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0), dy = l.In(op, 1);
  TapByTap taps(l, op, x.dims, dy.dims);
  const Node chosen = taps.Largest(x), zero = l.m().Like(dy, 0);
  Node sum = l.m().Like(x, 0);
  for (int64_t t = 0; t < taps.taps(); ++t) {
    sum = l.m().Binary("add", sum, taps.Spread(taps.Where(chosen, t, dy, zero), t));
  }
  l.Set(op.results[0], sum);
}

void WindowMaxPick(Lowering& l, const Op& op) {
  const Node x = l.In(op, 0), values = l.In(op, 1);
  TapByTap taps(l, op, x.dims, l.type(op.results[0]).dims);
  const Node chosen = taps.Largest(x), padded = taps.Padded(values, 0);
  Node picked = l.m().Splat(x.element, taps.positions(), 0);
  for (int64_t t = 0; t < taps.taps(); ++t) {
    picked = taps.Where(chosen, t, taps.Seen(padded, t), picked);
  }
  l.Set(op.results[0], picked);
}

}  // namespace

void AddWindow(Rows& rows) {
  rows["conv"] = Conv;
  rows["conv_input_grad"] = ConvInputGrad;
  rows["conv_filter_grad"] = ConvFilterGrad;
  rows["window_sum"] = WindowSum;
  rows["window_sum_grad"] = WindowSumGrad;
  rows["window_max"] = WindowMax;
  rows["window_max_grad"] = WindowMaxGrad;
  rows["window_max_pick"] = WindowMaxPick;
}

}  // namespace meshtrain::device::pjrt
