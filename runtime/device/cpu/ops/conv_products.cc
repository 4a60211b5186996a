// Convolutions as matrix products. A patch is the row of all elements that a position's window
// covers, taps in order and a group's channels in each, zeros on padding: just what a column of the
// kernel multiplies, so a kernel needs no other order.
//
//   positions = patches x kernel;  patches' gradient = positions' x kernel^T, added to the elements
//   that they are copies of;  kernel's gradient = sum over examples of patches^T x positions'
//
// Patches are made for some positions of one example at a time (kPatches elements), and lie in the
// step's scratch, apart for each range of a loop. What is added in which order follows from the
// shape alone: never from the threads.
#include <cstring>
#include <vector>

#include "runtime/device/cpu/gemm.h"
#include "runtime/device/cpu/ops/window.h"

namespace meshtrain::device::cpu {
namespace {

constexpr int64_t kPatches = 32768;  // elements: with their product they stay in a core's cache

struct Tiling {
  int64_t row;         // elements of a patch
  int64_t rows;        // patches at a time
  int64_t tiles;       // of one example
  bool are_positions;  // elements are their own patches
};

Tiling TilingOf(const WindowShape& w) {
  Tiling t;
  t.row = w.taps() * w.channels_of_group();
  t.rows = std::clamp<int64_t>(kPatches / t.row, 16, std::max<int64_t>(16, w.positions_of_one()));
  t.tiles = (w.positions_of_one() + t.rows - 1) / t.rows;
  t.are_positions = w.taps() == 1 && w.positions == w.elements;
  for (int d = 0; d < 3; ++d) {
    t.are_positions = t.are_positions && w.stride[d] == 1 && w.low[d] == 0;
  }
  return t;
}

// Patches of positions [begin, end) of an example, of one group.
template <typename T>
void Gather(const WindowShape& w, int64_t group, int64_t begin, int64_t end, const T* example,
            T* patches) {
  const int64_t channels = w.channels_of_group();
  const bool runs = w.dilation[2] == 1 && w.groups == 1;  // taps of a row lie side by side
  T* to = patches;
  Walk(w.positions, begin, end, [&](const auto& o, int64_t) {
    for (int64_t k0 = 0; k0 < w.size[0]; ++k0) {
      const int64_t i0 = o[0] * w.stride[0] + k0 * w.dilation[0] - w.low[0];
      for (int64_t k1 = 0; k1 < w.size[1]; ++k1) {
        const int64_t i1 = o[1] * w.stride[1] + k1 * w.dilation[1] - w.low[1];
        const int64_t of_row = w.size[2] * channels;
        if (i0 < 0 || i0 >= w.elements[0] || i1 < 0 || i1 >= w.elements[1]) {
          std::fill_n(to, of_row, T{0});
          to += of_row;
          continue;
        }
        const int64_t i2 = o[2] * w.stride[2] - w.low[2];
        const T* row = example + (i0 * w.elements[1] + i1) * w.elements[2] * w.channels;
        if (runs) {
          const int64_t first = std::clamp<int64_t>(-i2, 0, w.size[2]);
          const int64_t last = std::clamp<int64_t>(w.elements[2] - i2, first, w.size[2]);
          std::fill_n(to, first * channels, T{0});
          std::copy_n(row + (i2 + first) * channels, (last - first) * channels,
                      to + first * channels);
          std::fill_n(to + last * channels, (w.size[2] - last) * channels, T{0});
          to += of_row;
          continue;
        }
        for (int64_t k2 = 0; k2 < w.size[2]; ++k2, to += channels) {
          const int64_t at = i2 + k2 * w.dilation[2];
          if (at < 0 || at >= w.elements[2]) {
            std::fill_n(to, channels, T{0});
          } else {
            std::copy_n(row + at * w.channels + group * channels, channels, to);
          }
        }
      }
    }
  });
}

// Adds patches to the elements that they are of.
template <typename T>
void AddBack(const WindowShape& w, int64_t group, int64_t begin, int64_t end, const T* patches,
             T* example) {
  const int64_t channels = w.channels_of_group();
  const T* from = patches;
  Walk(w.positions, begin, end, [&](const auto& o, int64_t) {
    Taps(w, o, [&](int64_t tap, int64_t element) {
      T* to = example + element * w.channels + group * channels;
      const T* at = from + tap * channels;
      for (int64_t c = 0; c < channels; ++c) to[c] += at[c];
    });
    from += w.taps() * channels;
  });
}

// What a range of a loop has of the scratch.
template <typename T>
T* ScratchOf(const Frame& f, int64_t slot, int64_t bytes) {
  return reinterpret_cast<T*>(f.scratch + slot * bytes);
}

template <typename T>
KernelPtr Forward(const ConvCall& call) {
  const WindowShape w = call.shape;
  const Tiling t = TilingOf(w);
  const int64_t items = w.n * t.tiles, slots = SlotsFor(items, call.threads);
  const int64_t bytes =
      t.are_positions ? 0 : AlignedBytes(t.rows * t.row * static_cast<int64_t>(sizeof(T)));
  return MakeKernel(
      [=, a = call.a, b = call.b, out = call.out](const Frame& f) {
        const T* kernel = f.As<const T>(b);
        InSlots(f, slots, items, [&](int64_t slot, int64_t begin, int64_t end) {
          T* patches = ScratchOf<T>(f, slot, bytes);
          for (int64_t item = begin; item < end; ++item) {
            const int64_t n = item / t.tiles, first = item % t.tiles * t.rows;
            const int64_t last = std::min(first + t.rows, w.positions_of_one());
            const T* example = f.As<const T>(a) + n * w.elements_of_one() * w.channels;
            T* to = f.As<T>(out) + (n * w.positions_of_one() + first) * w.features;
            for (int64_t g = 0; g < w.groups; ++g) {
              GemmShape s{.m = last - first,
                          .n = w.features_of_group(),
                          .k = t.row,
                          .lda = t.row,
                          .ldb = w.features,
                          .ldc = w.features};
              const T* rows = patches;
              if (t.are_positions) {
                s.lda = w.channels;
                rows = example + first * w.channels + g * w.channels_of_group();
              } else {
                Gather(w, g, first, last, example, patches);
              }
              Gemm(s, rows, kernel + g * s.n, to + g * s.n);
            }
          }
        });
      },
      slots * bytes);
}

template <typename T>
KernelPtr InputGrad(const ConvCall& call) {
  const WindowShape w = call.shape;
  const Tiling t = TilingOf(w);
  const int64_t slots = SlotsFor(w.n, call.threads);
  const int64_t bytes = AlignedBytes(t.rows * t.row * static_cast<int64_t>(sizeof(T)));
  return MakeKernel(
      [=, a = call.a, b = call.b, out = call.out](const Frame& f) {
        const T* kernel = f.As<const T>(b);
        // An example at a time: its windows may overlap.
        InSlots(f, slots, w.n, [&](int64_t slot, int64_t begin, int64_t end) {
          T* patches = ScratchOf<T>(f, slot, bytes);
          for (int64_t n = begin; n < end; ++n) {
            const T* from = f.As<const T>(a) + n * w.positions_of_one() * w.features;
            T* example = f.As<T>(out) + n * w.elements_of_one() * w.channels;
            std::fill_n(example, w.elements_of_one() * w.channels, T{0});
            for (int64_t first = 0; first < w.positions_of_one(); first += t.rows) {
              const int64_t last = std::min(first + t.rows, w.positions_of_one());
              for (int64_t g = 0; g < w.groups; ++g) {
                const GemmShape s{.m = last - first,
                                  .n = t.row,
                                  .k = w.features_of_group(),
                                  .transpose_b = true,
                                  .lda = w.features,
                                  .ldb = w.features,
                                  .ldc = t.row};
                Gemm(s, from + first * w.features + g * s.k, kernel + g * s.k, patches);
                AddBack(w, g, first, last, patches, example);
              }
            }
          }
        });
      },
      slots * bytes);
}

template <typename T>
KernelPtr FilterGrad(const ConvCall& call) {
  const WindowShape w = call.shape;
  const Tiling t = TilingOf(w);
  const int64_t kernel = t.row * w.features;
  // Parts of the examples, each with a sum of its own (in double: they are long), then added up.
  constexpr int64_t kMostParts = 16, kMostBytes = int64_t{32} << 20;
  const int64_t sum_bytes = AlignedBytes(kernel * static_cast<int64_t>(sizeof(double)));
  const int64_t parts =
      std::clamp<int64_t>(std::min(kMostBytes / sum_bytes, w.n * w.products_of_one() >> 18), 1,
                          std::min(kMostParts, w.n));
  const int64_t patch_bytes = AlignedBytes(t.rows * t.row * static_cast<int64_t>(sizeof(T)));
  const int64_t product_bytes =
      AlignedBytes(t.row * w.features_of_group() * static_cast<int64_t>(sizeof(T)));
  const int64_t bytes = sum_bytes + patch_bytes + product_bytes;
  return MakeKernel(
      [=, a = call.a, b = call.b, out = call.out](const Frame& f) {
        InSlots(f, parts, parts, [&](int64_t, int64_t first_part, int64_t last_part) {
          for (int64_t part = first_part; part < last_part; ++part) {
            std::byte* scratch = f.scratch + part * bytes;
            auto* sums = reinterpret_cast<double*>(scratch);
            T* patches = reinterpret_cast<T*>(scratch + sum_bytes);
            T* product = reinterpret_cast<T*>(scratch + sum_bytes + patch_bytes);
            std::fill_n(sums, kernel, 0.0);
            for (int64_t n = w.n * part / parts; n < w.n * (part + 1) / parts; ++n) {
              const T* example = f.As<const T>(a) + n * w.elements_of_one() * w.channels;
              const T* from = f.As<const T>(b) + n * w.positions_of_one() * w.features;
              for (int64_t first = 0; first < w.positions_of_one(); first += t.rows) {
                const int64_t last = std::min(first + t.rows, w.positions_of_one());
                for (int64_t g = 0; g < w.groups; ++g) {
                  Gather(w, g, first, last, example, patches);
                  const GemmShape s{.m = t.row,
                                    .n = w.features_of_group(),
                                    .k = last - first,
                                    .transpose_a = true,
                                    .lda = t.row,
                                    .ldb = w.features,
                                    .ldc = w.features_of_group()};
                  Gemm(s, patches, from + first * w.features + g * s.n, product);
                  for (int64_t r = 0; r < s.m; ++r) {
                    double* to = sums + r * w.features + g * s.n;
                    for (int64_t j = 0; j < s.n; ++j) to[j] += product[r * s.n + j];
                  }
                }
              }
            }
          }
        });
        f.For(kernel, kGrain, [&](int64_t begin, int64_t end) {
          T* to = f.As<T>(out);
          for (int64_t i = begin; i < end; ++i) {
            double sum = 0;
            for (int64_t part = 0; part < parts; ++part) {
              sum += reinterpret_cast<const double*>(f.scratch + part * bytes)[i];
            }
            to[i] = static_cast<T>(sum);
          }
        });
      },
      parts * bytes);
}

}  // namespace

template <typename T>
KernelPtr MakeConvProducts(const ConvCall& call) {
  if (call.kind == ConvKind::kInputGrad) return InputGrad<T>(call);
  return call.kind == ConvKind::kFilterGrad ? FilterGrad<T>(call) : Forward<T>(call);
}
template KernelPtr MakeConvProducts<float>(const ConvCall&);
template KernelPtr MakeConvProducts<double>(const ConvCall&);

}  // namespace meshtrain::device::cpu
