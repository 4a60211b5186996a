// Convolutions, sums and maxima of windows, by their definitions: every pair of a position and an
// element that a tap joins is visited, and each op says what the pair means to it.
#include <algorithm>

#include "runtime/base/check.h"
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing::interpreter {
namespace {

struct Windows {
  Dims sizes, strides, dilations, low;
  Dims elements, positions;  // all dimensions
};

// body(position, element, tap): indices into the spatial dimensions flattened; pairs that lie
// outside are left out. In the order of positions, then taps.
template <typename Body>
void Pairs(const Windows& w, const Body& body) {
  const Dims over(w.elements.begin() + 1, w.elements.end() - 1);
  const Dims at(w.positions.begin() + 1, w.positions.end() - 1);
  ForEach(at, [&](const Dims& o, int64_t position) {
    ForEach(w.sizes, [&](const Dims& k, int64_t tap) {
      Dims i(o.size());
      for (size_t d = 0; d < o.size(); ++d) {
        i[d] = o[d] * w.strides[d] + k[d] * w.dilations[d] - w.low[d];
        if (i[d] < 0 || i[d] >= over[d]) return;
      }
      body(position, Position(i, over), tap);
    });
  });
}

// Adds a * b (b null: 1) to an element of the result, with its bounds.
struct Sum {
  Array& out;
  bool bounded;
  std::vector<int64_t> terms;

  void Add(int64_t to, const Array& a, int64_t ia, const Array* b, int64_t ib) {
    const Number y = b == nullptr ? 1 : b->at[ib];
    out.at[to] += static_cast<double>(a.at[ia]) * static_cast<double>(y);
    if (!bounded) return;
    const double ea = a.error[ia], eb = b == nullptr ? 0 : b->error[ib];
    out.mass[to] += a.mass[ia] * (b == nullptr ? 1 : b->mass[ib]);
    ++terms[to];
    if (ea == 0 && eb == 0) return;
    out.error[to] +=
        ea * (static_cast<double>(std::abs(y)) + eb) + eb * static_cast<double>(std::abs(a.at[ia]));
  }
  // `parts`: those of the operands that were added.
  void Close(int64_t parts) {
    out.parts = parts;
    int64_t most = 1;
    for (size_t i = 0; i < out.at.size(); ++i) {
      out.at[i] = static_cast<double>(out.at[i]);
      if (!bounded) continue;
      most = std::max(most, terms[i]);
      if (terms[i] > 0) {
        AddRounding(out, i, static_cast<double>(terms[i]) + 1, out.mass[i], out.error[i] == 0);
      }
      CloseBound(out, i);
    }
    out.parts = PartsOf(parts, most);
  }
};

Array Convolved(const Op& op, const Operands& x, const TensorType& type, bool bounded) {
  const bool input = op.kind == "conv_input_grad", filter = op.kind == "conv_filter_grad";
  const Dims& kernel = filter ? type.dims : x[1]->type.dims;
  Windows w{.sizes = Dims(kernel.begin(), kernel.end() - 2),
            .strides = op.attrs.Ints("strides"),
            .dilations = op.attrs.Ints("dilations"),
            .low = op.attrs.Ints("low"),
            .elements = input ? type.dims : x[0]->type.dims,
            .positions = input    ? x[0]->type.dims
                         : filter ? x[1]->type.dims
                                  : type.dims};
  const int64_t channels = w.elements.back(), features = w.positions.back();
  const int64_t of_group = kernel[kernel.size() - 2], groups = channels / of_group;
  const int64_t in_space = mesh::NumElements(w.elements) / std::max<int64_t>(1, w.elements[0]);
  const int64_t out_space = mesh::NumElements(w.positions) / std::max<int64_t>(1, w.positions[0]);
  Array out(type);
  if (bounded) {
    StartBounds(out);
    out.grid = x[0]->grid * x[1]->grid;
  }
  Sum sum{out, bounded, std::vector<int64_t>(out.at.size())};
  for (int64_t n = 0; n < w.elements[0]; ++n) {
    Pairs(w, [&](int64_t position, int64_t element, int64_t tap) {
      for (int64_t f = 0; f < features; ++f) {
        const int64_t group = f / (features / groups);
        for (int64_t c = 0; c < of_group; ++c) {
          const int64_t e = n * in_space + element * channels + group * of_group + c;
          const int64_t p = n * out_space + position * features + f;
          const int64_t k = (tap * of_group + c) * features + f;
          if (input) {
            sum.Add(e, *x[0], p, x[1], k);
          } else if (filter) {
            sum.Add(k, *x[0], e, x[1], p);
          } else {
            sum.Add(p, *x[0], e, x[1], k);
          }
        }
      }
    });
  }
  sum.Close(std::max(x[0]->parts, x[1]->parts));
  return out;
}

// For each position and channel the element that is the largest, the first of equals; -1: none.
// `open`: what the operand's intervals leave as candidates.
struct Largest {
  std::vector<int64_t> at;
  std::vector<std::vector<int64_t>> open;
};
Largest LargestOfWindows(const Windows& w, const Array& x, bool bounded) {
  const int64_t channels = w.elements.back();
  const int64_t in_space = mesh::NumElements(w.elements) / std::max<int64_t>(1, w.elements[0]);
  const int64_t out_space = mesh::NumElements(w.positions) / std::max<int64_t>(1, w.positions[0]);
  Largest best;
  best.at.assign(mesh::NumElements(w.positions), -1);
  if (bounded) best.open.resize(best.at.size());
  const auto each = [&](const auto& body) {
    for (int64_t n = 0; n < w.elements[0]; ++n) {
      Pairs(w, [&](int64_t position, int64_t element, int64_t) {
        for (int64_t c = 0; c < channels; ++c) {
          body(n * out_space + position * channels + c, n * in_space + element * channels + c);
        }
      });
    }
  };
  each([&](int64_t p, int64_t e) {
    int64_t& top = best.at[p];
    if (top < 0 || x.at[e] > x.at[top] || (std::isnan(x.at[e]) && !std::isnan(x.at[top]))) top = e;
  });
  if (!bounded) return best;
  each([&](int64_t p, int64_t e) {
    const int64_t top = best.at[p];
    const bool sure = x.error[e] == 0 && x.error[top] == 0;
    if (e == top || (!sure && !(x.at[e] + x.error[e] < x.at[top] - x.error[top]))) {
      best.open[p].push_back(e);
    }
  });
  return best;
}

// Of one tensor, channel by channel.
Array Pooled(const Op& op, const Operands& x, const TensorType& type, bool bounded) {
  const bool spreads = op.kind.ends_with("_grad");
  Windows w{.sizes = op.attrs.Ints("sizes"),
            .strides = op.attrs.Ints("strides"),
            .dilations = op.attrs.Ints("dilations"),
            .low = op.attrs.Ints("low"),
            .elements = spreads ? type.dims : x[0]->type.dims,
            .positions = spreads ? x.back()->type.dims : type.dims};
  Array out(type);
  if (bounded) StartBounds(out);
  if (op.kind == "window_sum" || op.kind == "window_sum_grad") {
    if (bounded) out.grid = x[0]->grid;
    const int64_t channels = w.elements.back();
    const int64_t in_space = mesh::NumElements(w.elements) / std::max<int64_t>(1, w.elements[0]);
    const int64_t out_space = mesh::NumElements(w.positions) / std::max<int64_t>(1, w.positions[0]);
    Sum sum{out, bounded, std::vector<int64_t>(out.at.size())};
    for (int64_t n = 0; n < w.elements[0]; ++n) {
      Pairs(w, [&](int64_t position, int64_t element, int64_t) {
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t e = n * in_space + element * channels + c;
          const int64_t p = n * out_space + position * channels + c;
          sum.Add(spreads ? e : p, *x[0], spreads ? p : e, nullptr, 0);
        }
      });
    }
    sum.Close(x[0]->parts);
    return out;
  }
  const Largest best = LargestOfWindows(w, *x[0], bounded);
  if (spreads) {
    if (bounded) out.grid = x[1]->grid;
    Sum sum{out, bounded, std::vector<int64_t>(out.at.size())};
    for (size_t p = 0; p < best.at.size(); ++p) {
      if (best.at[p] >= 0) sum.Add(best.at[p], *x[1], static_cast<int64_t>(p), nullptr, 0);
      if (!bounded || best.open[p].size() < 2) continue;
      // It may have gone to any of them.
      for (const int64_t e : best.open[p]) {
        const double size = x[1]->mass[p] + x[1]->error[p];
        out.error[e] += size;
        out.mass[e] += size;
      }
    }
    sum.Close(x[1]->parts);
    return out;
  }
  const Array& from = *x.back();  // max: the operand itself
  if (bounded) {
    out.grid = from.grid;
    out.parts = from.parts;
  }
  for (size_t p = 0; p < best.at.size(); ++p) {
    const int64_t top = best.at[p];
    out.at[p] = top < 0 ? (op.kind == "window_max" ? -std::numeric_limits<Number>::infinity() : 0)
                        : from.at[top];
    if (!bounded) continue;
    if (top >= 0) {
      for (const int64_t e : best.open[p]) {
        out.error[p] = std::max(
            out.error[p], static_cast<double>(std::abs(from.at[e] - out.at[p])) + from.error[e]);
        out.mass[p] = std::max(out.mass[p], from.mass[e]);
      }
    }
    CloseBound(out, p);
  }
  return out;
}

}  // namespace

std::optional<Array> OfWindows(const Op& op, const Operands& x, const TensorType& type, Keep keep) {
  const bool bounded = keep == Keep::kBounded;
  if (op.kind == "conv" || op.kind == "conv_input_grad" || op.kind == "conv_filter_grad") {
    return Convolved(op, x, type, bounded);
  }
  if (op.kind.starts_with("window_")) return Pooled(op, x, type, bounded);
  return std::nullopt;
}

}  // namespace meshtrain::testing::interpreter
