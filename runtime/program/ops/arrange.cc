// Ways to put elements in another order and number, and sums and products along an axis, made of
// other ops: each element is as exact as theirs, and where a dimension is split they are too.
#include <algorithm>

#include "runtime/program/ops.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// What an error leaves behind.
Value Failed(const Operand& a, Status error, std::string_view what) {
  const Operand operands[] = {a};
  Builder& builder = Builder::Of(operands);
  builder.Fail(error.At(what), a.where());
  return Value(&builder, kNoValue);
}

// `count` elements from `start` on, of dimension `axis`.
Value Part(const Operand& a, int64_t axis, int64_t start, int64_t count) {
  Dims sizes = TypeOf(a).dims, starts(sizes.size(), 0);
  starts[axis] = start;
  sizes[axis] = count;
  return Slice(a, std::move(starts), std::move(sizes));
}

Value PadAlong(const Operand& a, int64_t axis, int64_t before, int64_t after, double value) {
  Dims low(TypeOf(a).dims.size(), 0), high = low;
  low[axis] = before;
  high[axis] = after;
  return Pad(a, std::move(low), std::move(high), value);
}

}  // namespace

std::vector<Value> Split(const Operand& a, const std::vector<int64_t>& sizes, int64_t axis) {
  const TensorType type = TypeOf(a);
  const int64_t at = FromStart(axis, type.rank());
  std::vector<Value> parts(sizes.size());
  Status wrong = CheckAxis(at, type.rank());
  int64_t sum = 0;
  bool negative = false;
  for (const int64_t size : sizes) {
    sum += size;
    negative = negative || size < 0;
  }
  if (wrong.ok() && (negative || sum != type.dims[at])) {
    wrong = InvalidArgument("expected sizes that make up the " + std::to_string(type.dims[at]) +
                            " elements along axis " + std::to_string(at) + " of " +
                            type.ToString() + ", got: " + IntsText(sizes));
  }
  if (!wrong.ok()) {
    std::fill(parts.begin(), parts.end(), Failed(a, wrong, "split"));
    return parts;
  }
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    parts[i] = Part(a, at, start, sizes[i]);
    start += sizes[i];
  }
  return parts;
}

Value Stack(const std::vector<Operand>& parts, int64_t axis) {
  std::vector<Operand> rows;
  for (const Operand& part : parts) rows.emplace_back(ExpandDims(part, axis), part.where());
  const int rank = parts.empty() ? 1 : TypeOf(parts[0]).rank() + 1;
  return Concat(rows, FromStart(axis, rank));
}

Value Tile(const Operand& a, const std::vector<int64_t>& repeats) {
  const TensorType type = TypeOf(a);
  const bool fits = repeats.size() == type.dims.size() &&
                    std::all_of(repeats.begin(), repeats.end(), [](int64_t r) { return r >= 1; });
  if (!fits) {
    return Failed(a,
                  InvalidArgument("expected for each dimension of " + type.ToString() +
                                  " at least 1 repeat, got: " + IntsText(repeats)),
                  "tile");
  }
  // Dimensions of 1 are stretched; the others are joined to themselves, which leaves each copy's
  // shards where they are.
  Dims stretched = type.dims;
  for (size_t d = 0; d < stretched.size(); ++d) {
    if (stretched[d] == 1) stretched[d] = repeats[d];
  }
  Value tiled = BroadcastTo(a, stretched);
  for (size_t d = 0; d < repeats.size(); ++d) {
    if (type.dims[d] == 1 || repeats[d] == 1) continue;
    const std::vector<Operand> copies(repeats[d], Operand(tiled, a.where()));
    tiled = Concat(copies, static_cast<int64_t>(d));
  }
  return tiled;
}

Value Roll(const Operand& a, int64_t shift, int64_t axis) {
  const TensorType type = TypeOf(a);
  const int64_t at = FromStart(axis, type.rank());
  if (Status wrong = CheckAxis(at, type.rank()); !wrong.ok()) return Failed(a, wrong, "roll");
  const int64_t n = type.dims[at];
  const int64_t by = n == 0 ? 0 : (shift % n + n) % n;
  if (by == 0) return ValueOf(a);
  return Concat(
      {Operand(Part(a, at, n - by, by), a.where()), Operand(Part(a, at, 0, n - by), a.where())},
      at);
}

Value Reverse(const Operand& a, std::vector<int64_t> axes) {
  for (int64_t& axis : axes) axis = FromStart(axis, TypeOf(a).rank());
  std::sort(axes.begin(), axes.end());
  return Record("reverse", {a}, {{"axes", std::move(axes)}});
}

Value StridedSlice(const Operand& a, int64_t start, int64_t step, int64_t count, int64_t axis) {
  const TensorType type = TypeOf(a);
  const int64_t at = FromStart(axis, type.rank());
  if (Status wrong = CheckAxis(at, type.rank()); !wrong.ok()) {
    return Failed(a, wrong, "strided_slice");
  }
  const int64_t n = type.dims[at];
  if (start < 0 || step < 1 || count < 1 || start >= n || count - 1 > (n - 1 - start) / step) {
    return Failed(
        a,
        InvalidArgument("expected a start, a step of at least 1 and a count of at least 1 "
                        "inside the " +
                        std::to_string(n) + " elements along axis " + std::to_string(at) + " of " +
                        type.ToString() + ", got: start " + std::to_string(start) + " step " +
                        std::to_string(step) + " count " + std::to_string(count)),
        "strided_slice");
  }
  if (step == 1) return Part(a, at, start, count);
  // As rows of `step` elements, of which the first are taken: [.., n, ..] -> [.., count, step, ..].
  const int64_t last = start + count * step;  // beyond the last row
  Value rows = Part(a, at, start, std::min(n, last) - start);
  if (last > n) rows = PadAlong(Operand(rows, a.where()), at, 0, last - n, 0);
  Dims dims = rows.dims();
  dims[at] = count;
  dims.insert(dims.begin() + at + 1, step);
  const Value first =
      Part(Operand(Reshape(Operand(rows, a.where()), dims), a.where()), at + 1, 0, 1);
  return Squeeze(Operand(first, a.where()), {at + 1});
}

// By doubling: after round k each element holds the sum of up to 2^k that end there, so rounding
// grows with the logarithm of the length.
Value CumSum(const Operand& a, int64_t axis, bool exclusive, bool reverse) {
  const TensorType type = TypeOf(a);
  const int64_t at = FromStart(axis, type.rank());
  if (Status wrong = CheckAxis(at, type.rank()); !wrong.ok()) return Failed(a, wrong, "cumsum");
  if (Status wrong = CheckAccepts(type, Accepts::kNumber); !wrong.ok()) {
    return Failed(a, wrong, "cumsum");
  }
  const int64_t n = type.dims[at];
  const auto shifted = [&](Value v, int64_t by) {
    const Value part = Part(Operand(v, a.where()), at, reverse ? by : 0, n - by);
    return PadAlong(Operand(part, a.where()), at, reverse ? 0 : by, reverse ? by : 0, 0);
  };
  Value sum = ValueOf(a);
  for (int64_t by = 1; by < n; by *= 2) sum = Operand(sum, a.where()) + Operand(shifted(sum, by));
  if (!exclusive || n == 0) return sum;
  return n == 1 ? Zeros(type.dims, type.dtype, a.where()) : shifted(sum, 1);
}

// By halves: the second half times the first, until one is left.
Value ReduceProd(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  const TensorType type = TypeOf(a);
  if (Status wrong = CheckAccepts(type, Accepts::kNumber); !wrong.ok()) {
    return Failed(a, wrong, "reduce_prod");
  }
  if (axes.empty()) {
    for (int d = 0; d < type.rank(); ++d) axes.push_back(d);
  }
  Value product = ValueOf(a);
  for (int64_t& axis : axes) {
    axis = FromStart(axis, type.rank());
    if (Status wrong = CheckAxis(axis, type.rank()); !wrong.ok()) {
      return Failed(a, wrong, "reduce_prod");
    }
    if (type.dims[axis] == 0) {
      return Failed(
          a,
          InvalidArgument("expected at least one element along the axis, got: " + type.ToString()),
          "reduce_prod");
    }
    for (int64_t n = type.dims[axis]; n > 1; n = (n + 1) / 2) {
      const int64_t half = (n + 1) / 2;
      const Operand all(product, a.where());
      Value rest = Part(all, axis, half, n - half);
      if (n % 2 != 0) rest = PadAlong(Operand(rest, a.where()), axis, 0, 1, 1);
      product = Mul(Operand(Part(all, axis, 0, half), a.where()), rest);
    }
  }
  return keep_dims ? product : Squeeze(Operand(product, a.where()), axes);
}

Value ReduceAny(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  if (Status wrong = CheckAccepts(TypeOf(a), Accepts::kBool); !wrong.ok()) {
    return Failed(a, wrong, "reduce_any");
  }
  const Value number = Cast(a, DType::kU8);
  const Value most = ReduceMax(Operand(number, a.where()), std::move(axes), keep_dims);
  return Cast(Operand(most, a.where()), DType::kBool);
}

Value ReduceAll(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  if (Status wrong = CheckAccepts(TypeOf(a), Accepts::kBool); !wrong.ok()) {
    return Failed(a, wrong, "reduce_all");
  }
  const Value number = Cast(a, DType::kU8);
  const Value least = ReduceMin(Operand(number, a.where()), std::move(axes), keep_dims);
  return Cast(Operand(least, a.where()), DType::kBool);
}

// What is subtracted does not matter to the result, so no gradient goes through it. Nothing is
// subtracted where it is infinite.
Value LogSumExp(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  const auto at = [&](Value v) { return Operand(v, a.where()); };
  const Value most = StopGradient(at(ReduceMax(a, axes, true)));
  const Value top = Select(at(IsFinite(at(most))), at(most), 0.0);
  const Value sum = ReduceSum(at(Exp(at(Sub(a, at(top))))), axes, true);
  const Value all = Add(at(Log(at(sum))), at(top));
  if (keep_dims) return all;
  if (axes.empty()) {
    for (int d = 0; d < TypeOf(a).rank(); ++d) axes.push_back(d);
  }
  return Squeeze(at(all), std::move(axes));
}

}  // namespace meshtrain::program
