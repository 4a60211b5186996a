// Sums and maxima of windows, and their gradients, channels last as everything else; convolutions
// are handed on (conv.cc). One to three spatial dimensions are three, the first of them 1 where
// there are fewer.
//
// A window is a list of where its taps' channels begin; what is done with them is one loop for
// each instruction set (kernels/window.cc). Sums run over taps in one order, whatever the threads.
#include "runtime/device/cpu/ops/window.h"

#include <vector>

#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using program::Op;
using program::ValueId;

template <typename T>
constexpr Type kType = std::is_same_v<T, float> ? Type::kF32 : Type::kF64;
// What the kernels index taps by, beside numbers of T.
template <typename T>
using Index = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;

// Where the channels begin that an output's sum is of: the taps of a position, or of the gradient
// the positions that see an element.
struct OfPosition {
  template <typename Body>
  static void Each(const WindowShape& w, const std::array<int64_t, 3>& at, const Body& body) {
    Taps(w, at, [&](int64_t, int64_t element) { body(element); });
  }
  static int64_t Inputs(const WindowShape& w) { return w.elements_of_one(); }
  static const std::array<int64_t, 3>& Outputs(const WindowShape& w) { return w.positions; }
};
struct OfElement {
  template <typename Body>
  static void Each(const WindowShape& w, const std::array<int64_t, 3>& at, const Body& body) {
    SeenBy(w, at, [&](int64_t, int64_t position) { body(position); });
  }
  static int64_t Inputs(const WindowShape& w) { return w.positions_of_one(); }
  static const std::array<int64_t, 3>& Outputs(const WindowShape& w) { return w.elements; }
};

template <typename Of>
const std::vector<int64_t>& Begins(const WindowShape& w, const std::array<int64_t, 3>& at) {
  thread_local std::vector<int64_t> begins;
  begins.clear();
  Of::Each(w, at, [&](int64_t flat) { begins.push_back(flat * w.channels); });
  return begins;
}

template <typename T, typename Of>
KernelPtr Sum(const WindowShape& w, ValueId in, ValueId out) {
  return MakeKernel([=](const Frame& f) {
    const std::array<int64_t, 3>& outputs = Of::Outputs(w);
    const int64_t size = outputs[0] * outputs[1] * outputs[2];
    const auto add = ActiveKernels().window_sum;
    ForPlaces(f, w.n, outputs, w.taps() * w.channels, [&](int64_t n, const auto& at, int64_t flat) {
      const std::vector<int64_t>& begins = Begins<Of>(w, at);
      add(kType<T>, f.As<T>(out) + (n * size + flat) * w.channels,
          f.As<const T>(in) + n * Of::Inputs(w) * w.channels, begins.data(),
          static_cast<int64_t>(begins.size()), w.channels);
    });
  });
}

template <typename T>
KernelPtr Max(const WindowShape& w, ValueId x, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const auto largest = ActiveKernels().window_max;
    ForPlaces(f, w.n, w.positions, w.taps() * w.channels,
              [&](int64_t n, const auto& o, int64_t flat) {
                const std::vector<int64_t>& begins = Begins<OfPosition>(w, o);
                largest(kType<T>, f.As<T>(y) + (n * w.positions_of_one() + flat) * w.channels,
                        nullptr, f.As<const T>(x) + n * w.elements_of_one() * w.channels,
                        begins.data(), static_cast<int64_t>(begins.size()), w.channels);
              });
  });
}

// `v` where x is the largest; 0 where a window has nothing.
template <typename T>
KernelPtr Pick(const WindowShape& w, ValueId x, ValueId v, ValueId y) {
  return MakeKernel([=](const Frame& f) {
    const auto largest = ActiveKernels().window_max;
    ForPlaces(f, w.n, w.positions, w.taps() * w.channels,
              [&](int64_t n, const auto& o, int64_t flat) {
                thread_local std::vector<Index<T>> at;
                thread_local std::vector<T> top;
                at.resize(w.channels);
                top.resize(w.channels);
                const std::vector<int64_t>& begins = Begins<OfPosition>(w, o);
                const int64_t one = n * w.elements_of_one() * w.channels;
                largest(kType<T>, top.data(), at.data(), f.As<const T>(x) + one, begins.data(),
                        static_cast<int64_t>(begins.size()), w.channels);
                const T* values = f.As<const T>(v) + one;
                T* row = f.As<T>(y) + (n * w.positions_of_one() + flat) * w.channels;
                for (int64_t c = 0; c < w.channels; ++c) {
                  row[c] = at[c] < 0 ? 0 : values[begins[at[c]] + c];
                }
              });
  });
}

template <typename T>
KernelPtr MaxGrad(const WindowShape& w, ValueId x, ValueId dy, ValueId dx) {
  return MakeKernel([=](const Frame& f) {
    const auto largest = ActiveKernels().window_max;
    const auto spread = ActiveKernels().window_spread;
    // An example at a time: its windows may overlap.
    f.For(w.n, 1, [&](int64_t begin, int64_t end) {
      std::vector<Index<T>> at(w.channels);
      std::vector<T> top(w.channels);
      for (int64_t n = begin; n < end; ++n) {
        const T* in = f.As<const T>(x) + n * w.elements_of_one() * w.channels;
        const T* g = f.As<const T>(dy) + n * w.positions_of_one() * w.channels;
        T* out = f.As<T>(dx) + n * w.elements_of_one() * w.channels;
        std::fill_n(out, w.elements_of_one() * w.channels, T{0});
        Walk(w.positions, 0, w.positions_of_one(), [&](const auto& o, int64_t flat) {
          const std::vector<int64_t>& begins = Begins<OfPosition>(w, o);
          const auto count = static_cast<int64_t>(begins.size());
          largest(kType<T>, top.data(), at.data(), in, begins.data(), count, w.channels);
          spread(kType<T>, out, at.data(), g + flat * w.channels, begins.data(), count, w.channels);
        });
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
    return MakeConvKernel<T>({.shape = w,
                              .kind = input    ? ConvKind::kInputGrad
                                      : filter ? ConvKind::kFilterGrad
                                               : ConvKind::kForward,
                              .a = a,
                              .b = b,
                              .out = out,
                              .threads = making.threads});
  }
  if (!op.kind.starts_with("window_")) return nullptr;
  const bool spreads = op.kind.ends_with("_grad");
  const std::vector<int64_t> sizes = op.attrs.Ints("sizes");
  const WindowShape w =
      ShapeOf(dims(spreads ? out : a), dims(spreads ? op.operands.back() : out), sizes, op.attrs);
  if (op.kind == "window_sum") return Sum<T, OfPosition>(w, a, out);
  if (op.kind == "window_sum_grad") return Sum<T, OfElement>(w, a, out);
  if (op.kind == "window_max_grad") return MaxGrad<T>(w, a, b, out);
  return op.kind == "window_max" ? Max<T>(w, a, out) : Pick<T>(w, a, b, out);
}

}  // namespace

KernelPtr MakeWindowKernel(const Making& making, const Op& op) {
  if (op.operands.empty()) return nullptr;
  const mesh::DType dtype = making.local().type(op.operands[0]).dtype;
  if (dtype == mesh::DType::kF32) return Make<float>(making, op);
  return dtype == mesh::DType::kF64 ? Make<double>(making, op) : nullptr;
}

}  // namespace meshtrain::device::cpu
