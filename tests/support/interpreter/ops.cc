// Every op that is no collective, by its definition: those that move elements, products,
// reductions, and what the partitioner writes; the other families have files of their own.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "runtime/base/check.h"
#include "runtime/mesh/element_type.h"
#include "tests/support/interpreter/parts.h"

namespace meshtrain::testing {
namespace interpreter {
namespace {

// Of a product's terms in any order, by one rounding for each addition.
double ProductUnits(int64_t n) { return static_cast<double>(n); }

Array MatMul(const Attrs& attrs, const Operands& x, const TensorType& type, Keep keep) {
  if (attrs.Bool("sum_batch")) {
    // All rows of all matrices are rows of one.
    Array a = *x[0], b = *x[1];
    for (Array* of : {&a, &b}) {
      Dims& dims = of->type.dims;
      int64_t rows = 1;
      for (size_t d = 0; d + 1 < dims.size(); ++d) rows *= dims[d];
      dims = {rows, dims.back()};
    }
    Attrs rest = attrs;
    rest.Erase("sum_batch");
    return MatMul(rest, {&a, &b}, type, keep);
  }
  const Dims& a = x[0]->type.dims;
  const Dims& b = x[1]->type.dims;
  const bool ta = attrs.Bool("transpose_a"), tb = attrs.Bool("transpose_b");
  const size_t rank = type.dims.size();
  const int64_t m = type.dims[rank - 2], n = type.dims[rank - 1];
  const int64_t k = a[a.size() - (ta ? 2 : 1)];
  const int64_t products = type.num_elements() / std::max<int64_t>(1, m * n);
  const bool bounded = keep == Keep::kBounded;
  Array out(type);
  if (bounded) {
    StartBounds(out);
    out.grid = x[0]->grid * x[1]->grid;
    out.parts = std::max(x[0]->parts, x[1]->parts);
  }
  for (int64_t at = 0; at < type.num_elements(); ++at) {
    const int64_t product = at / (m * n), row = at / n % m, column = at % n;
    MT_CHECK(product < products);
    const int64_t a0 = a.size() > 2 ? product * m * k : 0, b0 = b.size() > 2 ? product * k * n : 0;
    Number sum = 0;
    double error = 0, mass = 0;
    for (int64_t i = 0; i < k; ++i) {
      const int64_t ia = a0 + (ta ? i * m + row : row * k + i);
      const int64_t ib = b0 + (tb ? column * k + i : i * n + column);
      sum += static_cast<double>(x[0]->at[ia]) * static_cast<double>(x[1]->at[ib]);
      if (!bounded) continue;
      const double ea = x[0]->error[ia], eb = x[1]->error[ib];
      mass += x[0]->mass[ia] * x[1]->mass[ib];
      if (ea == 0 && eb == 0) continue;
      error += ea * (static_cast<double>(std::abs(x[1]->at[ib])) + eb) +
               eb * static_cast<double>(std::abs(x[0]->at[ia]));
    }
    out.at[at] = static_cast<double>(sum);
    if (!bounded) continue;
    out.error[at] = error;
    out.mass[at] = mass;
    if (k > 0) AddRounding(out, at, ProductUnits(k) + 1, mass, error == 0);
    CloseBound(out, at);
  }
  out.parts = PartsOf(out.parts, k);
  return out;
}

// Where each element of `from` goes when the `axes` are reduced: the kept dimensions, row-major,
// whether or not the reduced ones stay as 1.
std::vector<Dims> ReduceSteps(const Dims& from, const std::vector<bool>& reduced) {
  Dims steps(from.size(), 0);
  int64_t step = 1;
  for (size_t d = from.size(); d-- > 0;) {
    if (reduced[d]) continue;
    steps[d] = step;
    step *= from[d];
  }
  return {steps};
}

Array ReduceSum(const Array& x, const std::vector<bool>& reduced, const TensorType& type,
                Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  const bool real = mesh::IsFloat(type.dtype);
  if (bounded) {
    StartBounds(out);
    if (real) out.grid = x.grid;
    out.parts = x.parts;
  }
  std::vector<uint64_t> whole(real ? 0 : out.at.size());  // wraps around
  Walk(x.type.dims, ReduceSteps(x.type.dims, reduced), [&](int64_t at, const int64_t* to) {
    if (real) {
      out.at[to[0]] += x.at[at];
    } else {
      whole[to[0]] += static_cast<uint64_t>(static_cast<int64_t>(x.at[at]));
    }
    if (!bounded) return;
    out.error[to[0]] += x.error[at];
    if (real) out.mass[to[0]] += x.mass[at];
  });
  const int64_t terms = x.type.num_elements() / std::max<int64_t>(1, type.num_elements());
  for (size_t i = 0; i < out.at.size(); ++i) {
    if (real) {
      out.at[i] = static_cast<double>(out.at[i]);
    } else {
      out.at[i] = RoundTo(type.dtype, static_cast<Number>(static_cast<int64_t>(whole[i])));
    }
    if (!bounded) continue;
    if (real && terms > 1)
      AddRounding(out, i, SumUnits(type.dtype, terms), out.mass[i], out.error[i] == 0);
    CloseBound(out, i);
  }
  out.parts = PartsOf(out.parts, terms);
  return out;
}

Number Extreme(bool max, Number a, Number b) {
  if (std::isnan(a) || std::isnan(b)) return kNaN;
  return max ? std::max(a, b) : std::min(a, b);
}

// What a reduction of nothing gives.
Number Identity(bool max, DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return max ? 0 : 255;
    case DType::kI32:
      return max ? static_cast<Number>(std::numeric_limits<int32_t>::min())
                 : static_cast<Number>(std::numeric_limits<int32_t>::max());
    case DType::kI64:
      return max ? static_cast<Number>(std::numeric_limits<int64_t>::min())
                 : static_cast<Number>(std::numeric_limits<int64_t>::max());
    default:
      return max ? -std::numeric_limits<Number>::infinity()
                 : std::numeric_limits<Number>::infinity();
  }
}

Array ReduceExtreme(bool max, const Array& x, const std::vector<bool>& reduced,
                    const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  out.at.assign(out.at.size(), Identity(max, type.dtype));
  // The intervals' ends are reduced as the values are.
  std::vector<Number> low, high;
  if (bounded) {
    StartBounds(out);
    if (!out.mass.empty()) out.grid = x.grid;
    low = high = out.at;
  }
  Walk(x.type.dims, ReduceSteps(x.type.dims, reduced), [&](int64_t at, const int64_t* to) {
    out.at[to[0]] = Extreme(max, out.at[to[0]], x.at[at]);
    if (!bounded) return;
    if (x.error[at] == kUnknown || out.error[to[0]] == kUnknown) {
      out.error[to[0]] = kUnknown;
      return;
    }
    low[to[0]] = Extreme(max, low[to[0]], x.at[at] - x.error[at]);
    high[to[0]] = Extreme(max, high[to[0]], x.at[at] + x.error[at]);
  });
  for (size_t i = 0; bounded && i < out.at.size(); ++i) {
    if (out.error[i] != kUnknown) {
      out.error[i] = static_cast<double>(std::max(high[i] - out.at[i], out.at[i] - low[i]));
      if (std::isnan(out.error[i])) out.error[i] = kUnknown;
    }
    CloseBound(out, i);
  }
  return out;
}

Array Reduce(const Op& op, const Array& x, const TensorType& type, Keep keep) {
  std::vector<bool> reduced(x.type.dims.size(), false);
  for (const int64_t a : op.attrs.Ints("axes")) reduced[a] = true;
  if (op.kind == "reduce_sum") return ReduceSum(x, reduced, type, keep);
  return ReduceExtreme(op.kind == "reduce_max", x, reduced, type, keep);
}

// The first of the largest. Where the operands' intervals leave several, the error reaches to the
// farthest of them.
Array ArgMax(const Op& op, const Array& x, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) StartBounds(out);
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  const int64_t n = x.type.dims[axis];
  const int64_t step = mesh::Strides(x.type.dims)[axis];
  for (int64_t to = 0; to < type.num_elements(); ++to) {
    const int64_t begin = to / step * step * n + to % step;
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) {
      const Number v = x.at[begin + i * step], top = x.at[begin + best * step];
      if (v > top || (std::isnan(v) && !std::isnan(top))) best = i;
    }
    out.at[to] = static_cast<Number>(best);
    if (!bounded) continue;
    const int64_t chosen = begin + best * step;
    const Number sure = x.at[chosen] - x.error[chosen];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = begin + i * step;
      const Number may = x.at[at] + x.error[at];
      const bool loses = i < best ? may < sure : may <= sure;
      if (i == best || loses) continue;
      out.error[to] = std::max(out.error[to], static_cast<double>(std::abs(i - best)));
    }
    if (x.error[chosen] == kUnknown) out.error[to] = static_cast<double>(n);
  }
  return out;
}

// How many elements are not within the limit; a NaN is not. What the operand's intervals leave open
// may count or not.
Array CountBeyond(const Op& op, const Array& x, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    if (!out.mass.empty()) out.grid = 1;
  }
  const Number limit = op.attrs.Double("limit");
  for (size_t i = 0; i < x.at.size(); ++i) {
    const Number size = std::abs(x.at[i]);
    out.at[0] += size <= limit ? 0 : 1;
    if (!bounded) continue;
    const bool open =
        x.error[i] == kUnknown || (size - x.error[i] <= limit) != (size + x.error[i] <= limit);
    out.error[0] += open ? 1 : 0;
  }
  if (bounded) CloseBound(out, 0);
  return out;
}

// A label outside gives a row of zeros.
Array OneHot(const Array& labels, const TensorType& type, Keep keep) {
  Array out(type);
  const bool bounded = keep == Keep::kBounded;
  if (bounded) {
    StartBounds(out);
    if (!out.mass.empty()) out.grid = 1;
  }
  const int64_t depth = type.dims.back();
  for (size_t i = 0; i < labels.at.size(); ++i) {
    for (int64_t c = 0; c < depth; ++c) {
      const size_t at = i * depth + c;
      const Number off = std::abs(labels.at[i] - static_cast<Number>(c));
      out.at[at] = off == 0 ? 1 : 0;
      if (!bounded) continue;
      out.error[at] = labels.error[i] != 0 && off <= labels.error[i] ? 1 : 0;
      CloseBound(out, at);
    }
  }
  return out;
}

Array Transpose(const Op& op, const Array& x, const TensorType& type, Keep keep) {
  const std::vector<int64_t> permutation = op.attrs.Ints("permutation");
  const Dims strides = mesh::Strides(x.type.dims);
  Dims steps(type.dims.size());
  for (size_t d = 0; d < steps.size(); ++d) steps[d] = strides[permutation[d]];
  std::vector<int64_t> from(type.num_elements());
  Walk(type.dims, {steps}, [&](int64_t at, const int64_t* source) { from[at] = source[0]; });
  return Moved(x, type, from, 0, keep);
}

Array Concat(const Op& op, const Operands& x, const TensorType& type, Keep keep) {
  // All parts in a row, and where each element of the whole lies there.
  Array all(TensorType{type.dtype, {0}});
  std::vector<int64_t> from(type.num_elements());
  const auto axis = static_cast<size_t>(op.attrs.Int("axis"));
  int64_t start = 0, before = 0;
  all.grid = 1;
  for (const Array* part : x) {
    ForEach(part->type.dims, [&](const Dims& index, int64_t at) {
      Dims to = index;
      to[axis] += start;
      from[Position(to, type.dims)] = before + at;
    });
    start += part->type.dims[axis];
    before += part->type.num_elements();
    all.at.insert(all.at.end(), part->at.begin(), part->at.end());
    all.error.insert(all.error.end(), part->error.begin(), part->error.end());
    all.mass.insert(all.mass.end(), part->mass.begin(), part->mass.end());
    all.grid = std::min(all.grid, part->grid);
    all.parts = std::max(all.parts, part->parts);
  }
  return Moved(all, type, from, 0, keep);
}

Array Shifted(const Array& x, const TensorType& type, const Dims& shift, Number fill, Keep keep) {
  std::vector<int64_t> from(type.num_elements());
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims source = index;
    bool inside = true;
    for (size_t d = 0; d < source.size(); ++d) {
      source[d] += shift[d];
      inside = inside && source[d] >= 0 && source[d] < x.type.dims[d];
    }
    from[at] = inside ? Position(source, x.type.dims) : -1;
  });
  return Moved(x, type, from, fill, keep);
}

Array Reverse(const Op& op, const Array& x, const TensorType& type, Keep keep) {
  std::vector<int64_t> from(type.num_elements());
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    Dims source = index;
    for (const int64_t axis : op.attrs.Ints("axes")) {
      source[axis] = type.dims[axis] - 1 - index[axis];
    }
    from[at] = Position(source, type.dims);
  });
  return Moved(x, type, from, 0, keep);
}

// --- what the partitioner writes

// Parts in their places: at most one says anything of an element, the others say 0.
Array Overlaid(const Operands& x, const TensorType& type) {
  Array out(type);
  for (const Array* part : x) {
    for (size_t i = 0; i < out.at.size(); ++i) out.at[i] += part->at[i];
  }
  return out;
}

Array MaskPad(const Op& op, const Array& x, const TensorType& type, const Standpoint& here) {
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  const int64_t start = ShardAlong(op, here) * type.dims[dim];
  const double value = op.attrs.Double("value");
  const Number pad =
      type.dtype == mesh::DType::kI64 ? static_cast<Number>(mesh::ToI64(value)) : Number{value};
  Array out = x;
  ForEach(type.dims, [&](const Dims& index, int64_t at) {
    if (start + index[dim] >= op.attrs.Int("size")) out.at[at] = pad;
  });
  return out;
}

Array ShardSlice(const Op& op, const Array& x, const TensorType& type, const Standpoint& here) {
  Dims shift(type.dims.size(), 0);
  const auto dim = static_cast<size_t>(op.attrs.Int("dim"));
  shift[dim] = ShardAlong(op, here) * type.dims[dim];
  return Window(x, type, shift, kNaN);
}

Array ShardWindow(const Op& op, const Array& x, const TensorType& type, const Standpoint& here) {
  Dims shift(type.dims.size(), 0);
  shift[op.attrs.Int("dim")] = op.attrs.Ints("starts")[ShardAlong(op, here)];
  return Window(x, type, shift, op.attrs.Double("value"));
}

Result<Array> Evaluate(const Op& op, const Operands& x, const TensorType& type,
                       const Standpoint& here) {
  const Keep keep = here.keep;
  if (auto out = Elementwise(op, x, type, keep)) return *std::move(out);
  if (auto out = Classes(op, x, type, keep)) return *std::move(out);
  if (auto out = Sources(op, x, type, here)) return *std::move(out);
  if (auto out = OfWindows(op, x, type, keep)) return *std::move(out);
  if (auto out = ByNumbers(op, x, type, here)) return *std::move(out);
  if (auto out = InOrder(op, x, type, keep)) return *std::move(out);
  if (op.kind == "reshape") {
    Array out = *x[0];
    out.type = type;
    return out;
  }
  if (op.kind == "matmul") return MatMul(op.attrs, x, type, keep);
  if (op.kind == "reduce_sum" || op.kind == "reduce_max" || op.kind == "reduce_min") {
    return Reduce(op, *x[0], type, keep);
  }
  if (op.kind == "argmax") return ArgMax(op, *x[0], type, keep);
  if (op.kind == "count_beyond") return CountBeyond(op, *x[0], type, keep);
  if (op.kind == "one_hot") return OneHot(*x[0], type, keep);
  if (op.kind == "transpose") return Transpose(op, *x[0], type, keep);
  if (op.kind == "concat" && op.attrs.Bool("overlaid")) return Overlaid(x, type);
  if (op.kind == "concat") return Concat(op, x, type, keep);
  if (op.kind == "reverse") return Reverse(op, *x[0], type, keep);
  if (op.kind == "slice") return Shifted(*x[0], type, op.attrs.Ints("starts"), 0, keep);
  if (op.kind == "pad") {
    Dims shift = op.attrs.Ints("before");
    for (int64_t& s : shift) s = -s;
    return Shifted(*x[0], type, shift, RoundTo(type.dtype, op.attrs.Double("value")), keep);
  }
  if (op.kind == "mask_pad") return MaskPad(op, *x[0], type, here);
  if (op.kind == "shard_window") return ShardWindow(op, *x[0], type, here);
  if (op.kind == "shard_slice") return ShardSlice(op, *x[0], type, here);
  return Unimplemented("interpreter: expected an op that it knows, got: `" + op.kind + "`");
}

}  // namespace

int64_t ShardAlong(const Op& op, const Standpoint& here) {
  MT_CHECK(here.mesh != nullptr);
  const std::vector<int64_t> coordinates = here.mesh->Coordinates(here.rank);
  int64_t shard = 0;
  for (const int64_t a : op.attrs.Ints("axes")) {
    shard = shard * here.mesh->axis(static_cast<int>(a)).size + coordinates[a];
  }
  return shard;
}

}  // namespace interpreter

Array Window(const Array& x, const mesh::TensorType& type, const mesh::Dims& shift, Number fill) {
  return interpreter::Shifted(x, type, shift, fill, Keep::kRounded);
}

namespace {

// Rounded to odd, so that the next rounding is the only one.
double ToHalf(Number value) {
  const auto near = static_cast<double>(value);
  if (!std::isfinite(near) || near == value) return near;
  const double other = std::nextafter(near, near < value ? HUGE_VAL : -HUGE_VAL);
  return (std::bit_cast<uint64_t>(near) & 1) != 0 ? near : other;
}

}  // namespace

Number RoundTo(mesh::DType dtype, Number value) {
  using mesh::DType;
  switch (dtype) {
    case DType::kF64:
      return static_cast<double>(value);
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kBF16:
      return static_cast<float>(mesh::BFloat16(ToHalf(value)));
    case DType::kF16:
      return static_cast<float>(mesh::Float16(ToHalf(value)));
    case DType::kBool:
      return value != 0 ? 1 : 0;
    default:
      break;
  }
  // What a NaN becomes as an integer is undefined; an odd number shows where it is relied upon.
  if (std::isnan(value)) return 113;
  // Modulo 2^64, then the low bits.
  Number whole = std::fmod(std::trunc(value), 0x1p64L);
  if (whole < 0) whole += 0x1p64L;
  const auto bits = static_cast<uint64_t>(whole);
  switch (dtype) {
    case DType::kU8:
      return static_cast<uint8_t>(bits);
    case DType::kI32:
      return static_cast<int32_t>(static_cast<uint32_t>(bits));
    default:
      return static_cast<Number>(static_cast<int64_t>(bits));
  }
}

Result<std::vector<Array>> EvaluateOp(const program::Op& op,
                                      const std::vector<const Array*>& operands,
                                      const std::vector<mesh::TensorType>& types,
                                      const Standpoint& here) {
  MT_CHECK(types.size() == 1);
  MT_ASSIGN_OR_RETURN(Array out, interpreter::Evaluate(op, operands, types[0], here));
  if (here.keep == Keep::kRounded || !mesh::IsFloat(types[0].dtype)) {
    for (Number& v : out.at) v = RoundTo(types[0].dtype, v);
  }
  return std::vector<Array>{std::move(out)};
}

}  // namespace meshtrain::testing
