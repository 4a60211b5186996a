// Convolutions: which way each is computed, and the plain loops that serve any of them. Elements,
// positions and kernels lie as the program has them ([N, S..., C], [N, O..., F], [K..., C/G, F]).
//
// Sums of the loops run over taps and channels in one order, whatever the threads; those of a
// kernel's gradient, which are long, in double precision.
#include <atomic>
#include <type_traits>
#include <vector>

#include "runtime/device/cpu/ops/window.h"

namespace meshtrain::device::cpu {
namespace {

using program::ValueId;

struct Made {
  std::atomic<int64_t> primitives = 0, products = 0, loops = 0;
};
Made& AllMade() {
  static Made made;
  return made;
}

template <typename T>
KernelPtr Forward(const WindowShape& w, ValueId x, ValueId kernel, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const T* in = f.As<const T>(x);
    const T* k = f.As<const T>(kernel);
    T* out = f.As<T>(y);
    const int64_t each = w.features / w.groups, of_group = w.channels / w.groups;
    ForPlaces(f, w.n, w.positions, w.taps() * of_group * w.features,
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
    ForPlaces(f, w.n, w.elements, w.taps() * of_group * w.features,
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

}  // namespace

template <typename T>
KernelPtr MakeConvLoops(const ConvCall& call) {
  ++AllMade().loops;
  if (call.kind == ConvKind::kInputGrad) {
    return InputGrad<T>(call.shape, call.a, call.b, call.out);
  }
  return call.kind == ConvKind::kFilterGrad ? FilterGrad<T>(call.shape, call.a, call.b, call.out)
                                            : Forward<T>(call.shape, call.a, call.b, call.out);
}
template KernelPtr MakeConvLoops<float>(const ConvCall&);
template KernelPtr MakeConvLoops<double>(const ConvCall&);

template <typename T>
KernelPtr MakeConvKernel(const ConvCall& call) {
  const WindowShape& w = call.shape;
  // Nothing to compute: the loops write what zeros there are.
  if (w.n == 0 || w.products_of_one() == 0) return MakeConvLoops<T>(call);
  if constexpr (std::is_same_v<T, float>) {
    if (KernelPtr made = MakeConvPrimitive(call)) {
      ++AllMade().primitives;
      return made;
    }
  }
  // A group's product has so few columns that packing it takes longer than the loops.
  if (w.groups > 1 && w.features_of_group() < 8) return MakeConvLoops<T>(call);
  ++AllMade().products;
  return MakeConvProducts<T>(call);
}
template KernelPtr MakeConvKernel<float>(const ConvCall&);
template KernelPtr MakeConvKernel<double>(const ConvCall&);

ConvWays ConvKernelsMade() {
  const Made& made = AllMade();
  return {made.primitives, made.products, made.loops};
}

}  // namespace meshtrain::device::cpu
