// Sums and maxima of windows, and their gradients, channels last as everything else; convolutions
// are handed on (conv.cc). One to three spatial dimensions are three, the first of them 1 where
// there are fewer.
//
// Windows are taken a row at a time, along the last spatial dimension: those that have all their
// taps there share one list of where the taps' channels begin, and are one call of the loop of the
// instruction set (kernels/window.cc). One that lies partly on padding there is a row by itself.
// Sums run over taps in one order, whatever the threads.
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
// Places along the last dimension: [begin, end).
struct Range {
  int64_t begin, end;
};

// Where the channels begin that an output's sum is of: the taps of a position, or of the gradient
// the positions that see an element. Along the last dimension there are Kinds() kinds of outputs in
// turn: from one of a kind to the next, all that they see lies Step() inputs further on. Of those
// of the kind of output `i`, the ones in Inside(i) see inputs alone, no padding.
struct OfPosition {
  template <typename Body>
  static void Each(const WindowShape& w, const std::array<int64_t, 3>& at, const Body& body) {
    Taps(w, at, [&](int64_t, int64_t element) { body(element); });
  }
  static int64_t Inputs(const WindowShape& w) { return w.elements_of_one(); }
  static const std::array<int64_t, 3>& Outputs(const WindowShape& w) { return w.positions; }
  static int64_t Kinds(const WindowShape&) { return 1; }
  static int64_t Step(const WindowShape& w) { return w.stride[2]; }
  static Range Inside(const WindowShape& w, int64_t) {
    const int64_t room = w.elements[2] + w.low[2] - w.reach(2);
    return {(w.low[2] + w.stride[2] - 1) / w.stride[2], room < 0 ? 0 : room / w.stride[2] + 1};
  }
};
struct OfElement {
  template <typename Body>
  static void Each(const WindowShape& w, const std::array<int64_t, 3>& at, const Body& body) {
    SeenBy(w, at, [&](int64_t, int64_t position) { body(position); });
  }
  static int64_t Inputs(const WindowShape& w) { return w.positions_of_one(); }
  static const std::array<int64_t, 3>& Outputs(const WindowShape& w) { return w.elements; }
  static int64_t Kinds(const WindowShape& w) { return w.stride[2]; }
  static int64_t Step(const WindowShape&) { return 1; }
  static Range Inside(const WindowShape& w, int64_t i) {
    Range inside = {0, w.elements[2]};
    for (int64_t k = 0; k < w.size[2]; ++k) {
      const int64_t first = k * w.dilation[2] - w.low[2];  // which position 0 sees by that tap
      if ((i - first) % w.stride[2] != 0) continue;
      inside.begin = std::max(inside.begin, first);
      inside.end = std::min(inside.end, first + (w.positions[2] - 1) * w.stride[2] + 1);
    }
    return inside;
  }
};

// Calls body(row, i) for rows that cover the `count` outputs from `at` on, along the last
// dimension; the first window of a row is output at[2] + i.
template <typename Of, typename Body>
void Rows(const WindowShape& w, std::array<int64_t, 3> at, int64_t count, const Body& body) {
  thread_local std::vector<int64_t> taps;
  const int64_t kinds = Of::Kinds(w), begin = at[2], end = begin + count;
  WindowRow row{
      .step = Of::Step(w) * w.channels, .apart = kinds * w.channels, .channels = w.channels};
  for (int64_t kind = begin; kind < std::min(begin + kinds, end); ++kind) {
    const Range inside = Of::Inside(w, kind);
    for (int64_t i = kind; i < end; i += row.windows * kinds) {
      const bool whole = i >= inside.begin && i < inside.end;
      row.windows = whole ? (std::min(inside.end, end) - i + kinds - 1) / kinds : 1;
      at[2] = i;
      taps.clear();
      Of::Each(w, at, [&](int64_t flat) { taps.push_back(flat * w.channels); });
      row.taps = taps.data();
      row.count = static_cast<int64_t>(taps.size());
      body(row, i - begin);
    }
  }
}

// Windows that lie next to each other everywhere, as one of more channels.
WindowRow Joined(WindowRow row) {
  if (row.step != row.channels || row.apart != row.channels) return row;
  row.channels *= row.windows;
  row.windows = 1;
  return row;
}

// The rows of all outputs of each example, spread over threads: body(row, first input of the
// example, first output of the row), both with channels.
template <typename Of, typename Body>
void ForRows(const Frame& f, const WindowShape& w, const Body& body) {
  const std::array<int64_t, 3>& space = Of::Outputs(w);
  const int64_t size = space[0] * space[1] * space[2], work = w.taps() * w.channels;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, work));
  f.For(w.n * size, grain, [&](int64_t begin, int64_t end) {
    for (int64_t count = 0; begin < end; begin += count) {
      const int64_t flat = begin % size, last = flat % space[2];
      count = std::min(space[2] - last, end - begin);
      Rows<Of>(w, {flat / space[2] / space[1], flat / space[2] % space[1], last}, count,
               [&](const WindowRow& row, int64_t i) {
                 body(row, begin / size * Of::Inputs(w) * w.channels, (begin + i) * w.channels);
               });
    }
  });
}

template <typename T, typename Of>
KernelPtr Sum(const PoolCall& c) {
  return MakeKernel([=](const Frame& f) {
    const auto add = ActiveKernels().window_sum;
    const T* x = f.As<const T>(c.a);
    T* y = f.As<T>(c.out);
    ForRows<Of>(f, c.shape, [&](const WindowRow& row, int64_t in, int64_t out) {
      add(kType<T>, y + out, x + in, Joined(row));
    });
  });
}

template <typename T>
KernelPtr Max(const PoolCall& c) {
  return MakeKernel([=](const Frame& f) {
    const auto largest = ActiveKernels().window_max;
    const T* x = f.As<const T>(c.a);
    T* y = f.As<T>(c.out);
    ForRows<OfPosition>(f, c.shape, [&](const WindowRow& row, int64_t in, int64_t out) {
      largest(kType<T>, y + out, x + in, Joined(row));
    });
  });
}

// `b` where `a` is the largest; 0 where a window has nothing.
template <typename T>
KernelPtr Pick(const PoolCall& c) {
  return MakeKernel([=](const Frame& f) {
    const auto pick = ActiveKernels().window_pick;
    const T* x = f.As<const T>(c.a);
    const T* v = f.As<const T>(c.b);
    T* y = f.As<T>(c.out);
    ForRows<OfPosition>(f, c.shape, [&](const WindowRow& row, int64_t in, int64_t out) {
      pick(kType<T>, y + out, x + in, v + in, Joined(row));
    });
  });
}

// The elements that no window sees.
class Unseen {
 public:
  explicit Unseen(const WindowShape& w) {
    for (int d = 0; d < 3; ++d) {
      std::vector<bool>& seen = seen_[d];
      seen.resize(w.elements[d]);
      for (int64_t o = 0; o < w.positions[d]; ++o) {
        for (int64_t k = 0; k < w.size[d]; ++k) {
          const int64_t i = o * w.stride[d] + k * w.dilation[d] - w.low[d];
          if (i >= 0 && i < w.elements[d]) seen[i] = true;
        }
      }
      none_ = none_ && std::find(seen.begin(), seen.end(), false) == seen.end();
    }
  }
  bool none() const { return none_; }
  // body(first, how many) for those of row (i0, i1), along the last dimension.
  template <typename Body>
  void Each(int64_t i0, int64_t i1, const Body& body) const {
    const auto size = static_cast<int64_t>(seen_[2].size());
    if (!seen_[0][i0] || !seen_[1][i1]) return body(int64_t{0}, size);
    for (int64_t i = 0; i < size; ++i) {
      if (!seen_[2][i]) body(i, int64_t{1});
    }
  }

 private:
  std::vector<bool> seen_[3];
  bool none_ = true;
};

// Where no two windows share an element, each tap is written once, by whichever thread, and zeros
// go but where no window is.
template <typename T>
KernelPtr MaxGradApart(const PoolCall& c) {
  return MakeKernel([=, unseen = Unseen(c.shape)](const Frame& f) {
    const WindowShape& w = c.shape;
    const auto spread = ActiveKernels().window_max_grad;
    const T* x = f.As<const T>(c.a);
    const T* g = f.As<const T>(c.b);
    T* dx = f.As<T>(c.out);
    if (!unseen.none()) {
      const int64_t rows = w.elements[0] * w.elements[1], of_row = w.elements[2] * w.channels;
      f.For(w.n * rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, of_row)),
            [&](int64_t begin, int64_t end) {
              for (int64_t row = begin; row < end; ++row) {
                unseen.Each(row % rows / w.elements[1], row % w.elements[1],
                            [&](int64_t first, int64_t count) {
                              std::fill_n(dx + row * of_row + first * w.channels,
                                          count * w.channels, T{0});
                            });
              }
            });
    }
    ForRows<OfPosition>(f, w, [&](const WindowRow& row, int64_t in, int64_t out) {
      spread(kType<T>, dx + in, x + in, g + out, row, false);
    });
  });
}

template <typename T>
KernelPtr MaxGrad(const PoolCall& c) {
  if (!c.shape.overlap()) return MaxGradApart<T>(c);
  return MakeKernel([=](const Frame& f) {
    const WindowShape& w = c.shape;
    const auto spread = ActiveKernels().window_max_grad;
    const int64_t elements = w.elements_of_one() * w.channels;
    // An example at a time, its windows in order.
    f.For(w.n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* x = f.As<const T>(c.a) + n * elements;
        const T* g = f.As<const T>(c.b) + n * w.positions_of_one() * w.channels;
        T* dx = f.As<T>(c.out) + n * elements;
        std::fill_n(dx, elements, T{0});
        for (int64_t o0 = 0; o0 < w.positions[0]; ++o0) {
          for (int64_t o1 = 0; o1 < w.positions[1]; ++o1, g += w.positions[2] * w.channels) {
            Rows<OfPosition>(w, {o0, o1, 0}, w.positions[2], [&](const WindowRow& row, int64_t i) {
              spread(kType<T>, dx, x, g + i * w.channels, row, true);
            });
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
  const PoolKind kind = op.kind == "window_sum"        ? PoolKind::kSum
                        : op.kind == "window_sum_grad" ? PoolKind::kSumGrad
                        : op.kind == "window_max"      ? PoolKind::kMax
                        : op.kind == "window_max_grad" ? PoolKind::kMaxGrad
                                                       : PoolKind::kMaxPick;
  return MakePoolKernel<T>({.shape = w, .kind = kind, .a = a, .b = b, .out = out});
}

}  // namespace

template <typename T>
KernelPtr MakePoolKernel(const PoolCall& call) {
  switch (call.kind) {
    case PoolKind::kSum:
      return Sum<T, OfPosition>(call);
    case PoolKind::kSumGrad:
      return Sum<T, OfElement>(call);
    case PoolKind::kMax:
      return Max<T>(call);
    case PoolKind::kMaxGrad:
      return MaxGrad<T>(call);
    default:
      return Pick<T>(call);
  }
}
template KernelPtr MakePoolKernel<float>(const PoolCall&);
template KernelPtr MakePoolKernel<double>(const PoolCall&);

KernelPtr MakeWindowKernel(const Making& making, const Op& op) {
  if (op.operands.empty()) return nullptr;
  const mesh::DType dtype = making.local().type(op.operands[0]).dtype;
  if (dtype == mesh::DType::kF32) return Make<float>(making, op);
  return dtype == mesh::DType::kF64 ? Make<double>(making, op) : nullptr;
}

}  // namespace meshtrain::device::cpu
