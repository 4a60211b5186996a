// The numbers of one op on windows, with three spatial dimensions, and how its loops walk. Private
// to cpu/ops.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/device/cpu/kernel.h"

namespace meshtrain::device::cpu {

struct WindowShape {
  using Spatial = std::array<int64_t, 3>;
  int64_t n = 1, channels = 1, features = 1, groups = 1;
  Spatial elements = {1, 1, 1}, positions = {1, 1, 1};
  Spatial size = {1, 1, 1}, stride = {1, 1, 1}, dilation = {1, 1, 1};
  Spatial low = {0, 0, 0}, high = {0, 0, 0};

  int64_t taps() const { return size[0] * size[1] * size[2]; }
  // From a window's first tap to behind its last.
  int64_t reach(int d) const { return (size[d] - 1) * dilation[d] + 1; }
  // Two windows may see one element.
  bool overlap() const {
    for (int d = 0; d < 3; ++d) {
      if (positions[d] > 1 && stride[d] < reach(d)) return true;
    }
    return false;
  }
  int64_t elements_of_one() const { return elements[0] * elements[1] * elements[2]; }
  int64_t positions_of_one() const { return positions[0] * positions[1] * positions[2]; }
  int64_t channels_of_group() const { return channels / groups; }
  int64_t features_of_group() const { return features / groups; }
  // Of a convolution: for each example.
  int64_t products_of_one() const {
    return positions_of_one() * taps() * channels_of_group() * features;
  }
};

enum class ConvKind : uint8_t { kForward, kInputGrad, kFilterGrad };
// One of the three products of a convolution.
struct ConvCall {
  WindowShape shape;
  ConvKind kind = ConvKind::kForward;
  program::ValueId a = program::kNoValue, b = program::kNoValue, out = program::kNoValue;
  int threads = 1;  // that the kernel may spread over
};
// f32 by a primitive of oneDNN (conv_primitive.cc); null where it has but its reference for it.
KernelPtr MakeConvPrimitive(const ConvCall& call);
// By matrix products of patches (conv_products.cc), and by plain loops (conv.cc): any shape.
template <typename T>
KernelPtr MakeConvProducts(const ConvCall& call);
template <typename T>
KernelPtr MakeConvLoops(const ConvCall& call);
// Whichever is the fastest of them.
template <typename T>
KernelPtr MakeConvKernel(const ConvCall& call);

enum class PoolKind : uint8_t { kSum, kSumGrad, kMax, kMaxGrad, kMaxPick };
// A sum or maximum of windows, or what follows from one (window.cc); of each channel by itself.
struct PoolCall {
  WindowShape shape;
  PoolKind kind = PoolKind::kSum;
  program::ValueId a = program::kNoValue, b = program::kNoValue, out = program::kNoValue;
};
template <typename T>
KernelPtr MakePoolKernel(const PoolCall& call);

// How often kernels of each way were made in this process: tests see that a way is taken.
struct ConvWays {
  int64_t primitives = 0, products = 0, loops = 0;
};
ConvWays ConvKernelsMade();

// body(slot, begin, end) for ranges that cover [0, items), at most one at a time for each slot:
// what a slot holds of the scratch is its own. Where a range ends must not be part of a result.
template <typename Body>
void InSlots(const Frame& f, int64_t slots, int64_t items, const Body& body) {
  const auto piece = [&](int64_t s) { body(s, items * s / slots, items * (s + 1) / slots); };
  if (f.pool != nullptr) {
    f.pool->Run(slots, piece);
  } else {
    for (int64_t s = 0; s < slots; ++s) piece(s);
  }
}
// As many as keep the threads busy where one of them is slower than the others.
inline int64_t SlotsFor(int64_t items, int threads) {
  constexpr int64_t kOfThread = 3;
  return std::clamp<int64_t>(items, 1, threads == 1 ? 1 : kOfThread * threads);
}

// Calls body(tap, offset) for the taps of the position at which element offset they lie; offsets
// are into the spatial dimensions flattened. Those on padding are left out.
template <typename Body>
void Taps(const WindowShape& w, const std::array<int64_t, 3>& o, const Body& body) {
  int64_t tap = 0;
  for (int64_t k0 = 0; k0 < w.size[0]; ++k0) {
    const int64_t i0 = o[0] * w.stride[0] + k0 * w.dilation[0] - w.low[0];
    for (int64_t k1 = 0; k1 < w.size[1]; ++k1) {
      const int64_t i1 = o[1] * w.stride[1] + k1 * w.dilation[1] - w.low[1];
      for (int64_t k2 = 0; k2 < w.size[2]; ++k2, ++tap) {
        const int64_t i2 = o[2] * w.stride[2] + k2 * w.dilation[2] - w.low[2];
        if (i0 < 0 || i0 >= w.elements[0] || i1 < 0 || i1 >= w.elements[1] || i2 < 0 ||
            i2 >= w.elements[2]) {
          continue;
        }
        body(tap, (i0 * w.elements[1] + i1) * w.elements[2] + i2);
      }
    }
  }
}

// Likewise the taps, and the positions, by which an element is seen.
template <typename Body>
void SeenBy(const WindowShape& w, const std::array<int64_t, 3>& i, const Body& body) {
  std::array<int64_t, 3> k{}, o{};
  const auto along = [&](int d, int64_t tap) {
    const int64_t at = i[d] + w.low[d] - tap * w.dilation[d];
    if (at < 0 || at % w.stride[d] != 0) return false;
    o[d] = at / w.stride[d];
    return o[d] < w.positions[d];
  };
  for (k[0] = 0; k[0] < w.size[0]; ++k[0]) {
    if (!along(0, k[0])) continue;
    for (k[1] = 0; k[1] < w.size[1]; ++k[1]) {
      if (!along(1, k[1])) continue;
      for (k[2] = 0; k[2] < w.size[2]; ++k[2]) {
        if (!along(2, k[2])) continue;
        body((k[0] * w.size[1] + k[1]) * w.size[2] + k[2],
             (o[0] * w.positions[1] + o[1]) * w.positions[2] + o[2]);
      }
    }
  }
}

// body(index, flat) for places [begin, end) of `space`, in order.
template <typename Body>
void Walk(const std::array<int64_t, 3>& space, int64_t begin, int64_t end, const Body& body) {
  if (begin >= end) return;
  std::array<int64_t, 3> at = {begin / (space[1] * space[2]), begin / space[2] % space[1],
                               begin % space[2]};
  for (int64_t flat = begin; flat < end; ++flat) {
    body(at, flat);
    if (++at[2] < space[2]) continue;
    at[2] = 0;
    if (++at[1] < space[1]) continue;
    at[1] = 0;
    ++at[0];
  }
}

// body(n, index, flat) for all places of `space` of each example, spread over threads; `work`:
// multiplications for one.
template <typename Body>
void ForPlaces(const Frame& f, int64_t n, const std::array<int64_t, 3>& space, int64_t work,
               const Body& body) {
  const int64_t size = space[0] * space[1] * space[2];
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work));
  f.For(n * size, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t example = begin / size;
      const int64_t stop = std::min(end, (example + 1) * size);
      Walk(space, begin - example * size, stop - example * size,
           [&](const auto& at, int64_t flat) { body(example, at, flat); });
      begin = stop;
    }
  });
}

}  // namespace meshtrain::device::cpu
