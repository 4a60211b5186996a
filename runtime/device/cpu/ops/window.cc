// Convolutions, sums and maxima of windows (program/ops/window.cc says what they are). One to three
// spatial dimensions are three, the first of them 1 where there are fewer.
//
// Sums run over taps and channels in one order, whatever the threads; those of a kernel's gradient,
// which are long, in double precision.
#include "runtime/device/cpu/ops/window.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "runtime/device/cpu/kernel.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::TensorType;
using program::Op;
using program::ValueId;

// A part of a loop over rows of this many multiplications is worth handing to a thread.
int64_t GrainOf(int64_t work_of_row) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work_of_row));
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

// body(n, index, flat) for all places of `space` of each example, spread over threads.
template <typename Body>
void Places(const Frame& f, int64_t n, const std::array<int64_t, 3>& space, int64_t work,
            const Body& body) {
  const int64_t size = space[0] * space[1] * space[2];
  f.For(n * size, GrainOf(work), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t flat = at % size;
      body(at / size,
           std::array<int64_t, 3>{flat / (space[1] * space[2]), flat / space[2] % space[1],
                                  flat % space[2]},
           flat);
    }
  });
}

template <typename T>
KernelPtr Forward(const WindowShape& w, ValueId x, ValueId kernel, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(x);
    const T* k = f.As<const T>(kernel);
    T* out = f.As<T>(y);
    const int64_t each = w.features / w.groups, of_group = w.channels / w.groups;
    Places(f, w.n, w.positions, w.taps() * of_group * w.features,
           [&](int64_t n, const auto& o, int64_t flat) {
             T* row = out + (n * w.positions_of_one() + flat) * w.features;
             std::fill_n(row, w.features, T{0});
             Taps(w, o, [&](int64_t tap, int64_t element) {
               const T* from = in + (n * w.elements_of_one() + element) * w.channels;
               for (int64_t g = 0; g < w.groups; ++g) {
                 for (int64_t c = 0; c < of_group; ++c) {
                   const T factor = from[g * of_group + c];
                   const T* weights = k + (tap * of_group + c) * w.features + g * each;
                   T* to = row + g * each;
                   for (int64_t j = 0; j < each; ++j) to[j] += factor * weights[j];
                 }
               }
             });
           });
  });
}

template <typename T>
KernelPtr InputGrad(const WindowShape& w, ValueId dy, ValueId kernel, ValueId dx) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(dy);
    const T* k = f.As<const T>(kernel);
    T* out = f.As<T>(dx);
    const int64_t each = w.features / w.groups, of_group = w.channels / w.groups;
    Places(f, w.n, w.elements, w.taps() * of_group * w.features,
           [&](int64_t n, const auto& i, int64_t flat) {
             T* row = out + (n * w.elements_of_one() + flat) * w.channels;
             std::fill_n(row, w.channels, T{0});
             SeenBy(w, i, [&](int64_t tap, int64_t position) {
               const T* from = in + (n * w.positions_of_one() + position) * w.features;
               for (int64_t g = 0; g < w.groups; ++g) {
                 for (int64_t c = 0; c < of_group; ++c) {
                   const T* weights = k + (tap * of_group + c) * w.features + g * each;
                   const T* g_from = from + g * each;
                   T sum = 0;
                   for (int64_t j = 0; j < each; ++j) sum += g_from[j] * weights[j];
                   row[g * of_group + c] += sum;
                 }
               }
             });
           });
  });
}

template <typename T>
KernelPtr FilterGrad(const WindowShape& w, ValueId x, ValueId dy, ValueId dk) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(x);
    const T* grad = f.As<const T>(dy);
    T* out = f.As<T>(dk);
    const int64_t each = w.features / w.groups, of_group = w.channels / w.groups;
    // A row of the kernel's gradient at a time: one tap, one channel of each group.
    f.For(w.taps() * of_group, 1, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(w.features);
      for (int64_t item = begin; item < end; ++item) {
        std::fill(sums.begin(), sums.end(), 0.0);
        const int64_t tap = item / of_group, c = item % of_group;
        WindowShape one = w;  // that tap alone
        for (int d = 2, rest = static_cast<int>(tap); d >= 0; --d) {
          one.low[d] -= rest % w.size[d] * w.dilation[d];
          rest /= static_cast<int>(w.size[d]);
          one.size[d] = 1;
        }
        for (int64_t n = 0; n < w.n; ++n) {
          int64_t flat = 0;
          std::array<int64_t, 3> o{};
          for (o[0] = 0; o[0] < w.positions[0]; ++o[0]) {
            for (o[1] = 0; o[1] < w.positions[1]; ++o[1]) {
              for (o[2] = 0; o[2] < w.positions[2]; ++o[2], ++flat) {
                Taps(one, o, [&](int64_t, int64_t element) {
                  const T* a = in + (n * w.elements_of_one() + element) * w.channels + c;
                  const T* b = grad + (n * w.positions_of_one() + flat) * w.features;
                  for (int64_t g = 0; g < w.groups; ++g) {
                    const double factor = a[g * of_group];
                    for (int64_t j = g * each; j < (g + 1) * each; ++j) sums[j] += factor * b[j];
                  }
                });
              }
            }
          }
        }
        for (int64_t j = 0; j < w.features; ++j) {
          out[item * w.features + j] = static_cast<T>(sums[j]);
        }
      }
    });
  });
}

template <typename T>
KernelPtr Sum(const WindowShape& w, ValueId x, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(x);
    T* out = f.As<T>(y);
    Places(f, w.n, w.positions, w.taps() * w.channels, [&](int64_t n, const auto& o, int64_t flat) {
      T* row = out + (n * w.positions_of_one() + flat) * w.channels;
      std::fill_n(row, w.channels, T{0});
      Taps(w, o, [&](int64_t, int64_t element) {
        const T* from = in + (n * w.elements_of_one() + element) * w.channels;
        for (int64_t c = 0; c < w.channels; ++c) row[c] += from[c];
      });
    });
  });
}

template <typename T>
KernelPtr SumGrad(const WindowShape& w, ValueId dy, ValueId dx) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(dy);
    T* out = f.As<T>(dx);
    Places(f, w.n, w.elements, w.taps() * w.channels, [&](int64_t n, const auto& i, int64_t flat) {
      T* row = out + (n * w.elements_of_one() + flat) * w.channels;
      std::fill_n(row, w.channels, T{0});
      SeenBy(w, i, [&](int64_t, int64_t position) {
        const T* from = in + (n * w.positions_of_one() + position) * w.channels;
        for (int64_t c = 0; c < w.channels; ++c) row[c] += from[c];
      });
    });
  });
}

// The largest of each channel of a window, the first of equals, a NaN before all; -1: none.
template <typename T>
void Largest(const WindowShape& w, const std::array<int64_t, 3>& o, const T* in, T* top,
             int64_t* at) {
  const T lowest = -std::numeric_limits<T>::infinity();
  std::fill_n(top, w.channels, lowest);
  std::fill_n(at, w.channels, int64_t{-1});
  Taps(w, o, [&](int64_t, int64_t element) {
    const T* from = in + element * w.channels;
    for (int64_t c = 0; c < w.channels; ++c) {
      const T v = from[c];
      if (v > top[c] || at[c] < 0 || (v != v && top[c] == top[c])) {
        top[c] = v;
        at[c] = element;
      }
    }
  });
}

// `v`: what is picked where x is largest; kNoValue: x itself.
template <typename T>
KernelPtr Max(const WindowShape& w, ValueId x, ValueId v, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(x);
    const T* values = v == program::kNoValue ? nullptr : f.As<const T>(v);
    T* out = f.As<T>(y);
    Places(f, w.n, w.positions, w.taps() * w.channels, [&](int64_t n, const auto& o, int64_t flat) {
      thread_local std::vector<int64_t> at;
      thread_local std::vector<T> top;
      at.resize(w.channels);
      top.resize(w.channels);
      const int64_t one = n * w.elements_of_one() * w.channels;
      Largest(w, o, in + one, top.data(), at.data());
      T* row = out + (n * w.positions_of_one() + flat) * w.channels;
      for (int64_t c = 0; c < w.channels; ++c) {
        row[c] = values == nullptr ? top[c] : at[c] < 0 ? 0 : values[one + at[c] * w.channels + c];
      }
    });
  });
}

template <typename T>
KernelPtr MaxGrad(const WindowShape& w, ValueId x, ValueId dy, ValueId dx) {
  return MakeKernel([=](const Frame& f) {
    // An example at a time: its windows may overlap.
    f.For(w.n, 1, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> at(w.channels);
      std::vector<T> top(w.channels);
      for (int64_t n = begin; n < end; ++n) {
        const T* in = f.As<const T>(x) + n * w.elements_of_one() * w.channels;
        const T* g = f.As<const T>(dy) + n * w.positions_of_one() * w.channels;
        T* out = f.As<T>(dx) + n * w.elements_of_one() * w.channels;
        std::fill_n(out, w.elements_of_one() * w.channels, T{0});
        std::array<int64_t, 3> o{};
        for (o[0] = 0; o[0] < w.positions[0]; ++o[0]) {
          for (o[1] = 0; o[1] < w.positions[1]; ++o[1]) {
            for (o[2] = 0; o[2] < w.positions[2]; ++o[2], g += w.channels) {
              Largest(w, o, in, top.data(), at.data());
              for (int64_t c = 0; c < w.channels; ++c) {
                if (at[c] >= 0) out[at[c] * w.channels + c] += g[c];
              }
            }
          }
        }
      }
    });
  });
}

WindowShape ShapeOf(const Dims& elements, const Dims& positions, std::span<const int64_t> sizes,
                    const program::Attrs& attrs) {
  WindowShape w;
  w.n = elements.front();
  w.channels = elements.back();
  w.features = positions.back();
  const std::vector<int64_t> strides = attrs.Ints("strides"), dilations = attrs.Ints("dilations");
  const std::vector<int64_t> low = attrs.Ints("low"), high = attrs.Ints("high");
  const size_t skip = 3 - sizes.size();
  for (size_t d = 0; d < sizes.size(); ++d) {
    w.elements[skip + d] = elements[d + 1];
    w.positions[skip + d] = positions[d + 1];
    w.size[skip + d] = sizes[d];
    w.stride[skip + d] = strides[d];
    w.dilation[skip + d] = dilations[d];
    w.low[skip + d] = low[d];
    w.high[skip + d] = high[d];
  }
  return w;
}

template <typename T>
KernelPtr Make(const Making& making, const Op& op) {
  const auto dims = [&](ValueId v) -> const Dims& { return making.local().type(v).dims; };
  const ValueId a = op.operands[0], out = op.results[0];
  const ValueId b = op.operands.size() > 1 ? op.operands[1] : program::kNoValue;
  if (op.kind.starts_with("conv")) {
    const bool input = op.kind == "conv_input_grad", filter = op.kind == "conv_filter_grad";
    const Dims& kernel = dims(filter ? out : b);
    const size_t spatial = kernel.size() - 2;
    WindowShape w = ShapeOf(dims(input ? out : a),
                            dims(input    ? a
                                 : filter ? b
                                          : out),
                            std::span(kernel).subspan(0, spatial), op.attrs);
    w.groups = w.channels / kernel[spatial];
    if (input) return InputGrad<T>(w, a, b, out);
    return filter ? FilterGrad<T>(w, a, b, out) : Forward<T>(w, a, b, out);
  }
  if (!op.kind.starts_with("window_")) return nullptr;
  const bool spreads = op.kind.ends_with("_grad");
  const std::vector<int64_t> sizes = op.attrs.Ints("sizes");
  const WindowShape w =
      ShapeOf(dims(spreads ? out : a), dims(spreads ? op.operands.back() : out), sizes, op.attrs);
  if (op.kind == "window_sum") return Sum<T>(w, a, out);
  if (op.kind == "window_sum_grad") return SumGrad<T>(w, a, out);
  if (op.kind == "window_max_grad") return MaxGrad<T>(w, a, b, out);
  return Max<T>(w, a, b, out);
}

}  // namespace

KernelPtr MakeWindowKernel(const Making& making, const Op& op) {
  if (op.operands.empty()) return nullptr;
  const mesh::DType dtype = making.local().type(op.operands[0]).dtype;
  if (dtype == mesh::DType::kF32) return Make<float>(making, op);
  return dtype == mesh::DType::kF64 ? Make<double>(making, op) : nullptr;
}

}  // namespace meshtrain::device::cpu
