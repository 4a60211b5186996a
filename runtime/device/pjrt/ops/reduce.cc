#include <cmath>
#include <limits>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {

using mesh::DType;
using program::Op;

Node Extreme(Module& m, DType dtype, bool least) {
  const std::string element = ElementOf(dtype);
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
    case DType::kF16:
      return m.Splat(element, {}, least ? -HUGE_VAL : HUGE_VAL);
    case DType::kI32:
      return m.Whole(element, {},
                     static_cast<uint64_t>(int64_t{least ? std::numeric_limits<int32_t>::min()
                                                         : std::numeric_limits<int32_t>::max()}));
    case DType::kI64:
      return m.Whole(element, {},
                     static_cast<uint64_t>(least ? std::numeric_limits<int64_t>::min()
                                                 : std::numeric_limits<int64_t>::max()));
    case DType::kU8:
      return m.Whole(element, {}, least ? 0 : 255);
    case DType::kBool:
      break;
  }
  return m.Splat(element, {}, least ? 0 : 1);
}

namespace {

void ReduceSum(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const Node sum = m.Reduce("add", a, op.attrs.Ints("axes"), m.Splat(a.element, {}, 0));
  l.Set(op.results[0], m.Reshape(sum, l.type(op.results[0]).dims));
}

template <bool kMax>
void ReduceExtreme(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node first = Extreme(m, l.type(op.operands[0]).dtype, kMax);
  const Node found =
      m.Reduce(kMax ? "maximum" : "minimum", l.In(op, 0), op.attrs.Ints("axes"), first);
  l.Set(op.results[0], m.Reshape(found, l.type(op.results[0]).dims));
}

// The first of those that equal the maximum, or the first NaN.
void ArgMax(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t axis = op.attrs.Int("axis");
  const Node top = m.Reduce("maximum", a, {axis}, Extreme(m, l.type(op.operands[0]).dtype, true),
                            /*keep=*/true);
  Node chosen = m.Compare("EQ", a, m.Broadcast(top, a.dims));
  if (IsFloatElement(a.element)) chosen = m.Binary("or", chosen, m.Compare("NE", a, a));
  const Node at = m.Iota("i64", a.dims, axis);
  const Node none = m.Splat("i64", a.dims, static_cast<double>(a.dims[axis]));
  const Node last = m.Splat("i64", {}, static_cast<double>(a.dims[axis]));
  l.Set(op.results[0], m.Reduce("minimum", m.Select(chosen, at, none), {axis}, last));
}

// Element by element, into one number.
Node CountEach(Module& m, const Node& a, double limit) {
  const Node within = m.Compare("LE", m.Unary("abs", a), m.Like(a, limit));
  std::vector<int64_t> all;
  for (int64_t d = 0; d < a.rank(); ++d) all.push_back(d);
  return m.Reduce("add", m.Convert(m.Unary("not", within), "f32"), all, m.Splat("f32", {}, 0));
}

// What guards a step looks at every gradient, and XLA's code for CPUs counts one number after
// another. A product with a vector takes whole vectors. Its factor takes whatever is beyond the
// limit to infinity; no sum comes back from there, so where all sums are finite the count is 0.
// Else there is something to count, or numbers that are merely large: then each is looked at.
void CountBeyond(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const DType dtype = l.type(op.operands[0]).dtype;
  const double largest = mesh::LargestFinite(dtype);
  double limit = op.attrs.Double("limit");
  if (dtype == DType::kF32) {
    // The largest f32 that is not above it.
    auto near = static_cast<float>(limit);
    if (static_cast<double>(near) > limit) near = std::nextafter(near, 0.0f);
    limit = static_cast<double>(near);
  }
  // Four times: what is added in the same breath takes off one at most.
  const double factor = 4 * (largest / limit);
  const int64_t columns = a.rank() < 2 ? 0 : a.dims.back();
  const int64_t rows = columns == 0 ? 0 : l.type(op.operands[0]).num_elements() / columns;
  const bool wide = dtype == DType::kF32 || dtype == DType::kF64;  // sums of halves are not halves
  if (!l.for_cpus() || !wide || rows * columns < 1024 || limit < 8) {
    return l.Set(op.results[0], CountEach(m, a, limit));
  }
  const Node sums = m.Dot(m.Reshape(a, {rows, columns}), m.Splat(a.element, {columns, 1}, factor),
                          /*batch=*/0, /*transpose_a=*/false, /*transpose_b=*/false);
  const Node fine = m.Reduce("and", m.IsFinite(sums), {0, 1}, m.Splat("i1", {}, 1));
  l.Set(op.results[0], m.If(
                           fine, [](Module& inside) { return inside.Splat("f32", {}, 0); },
                           [&](Module& inside) { return CountEach(inside, a, limit); }));
}

}  // namespace

void AddReduce(Rows& rows) {
  rows["reduce_sum"] = ReduceSum;
  rows["reduce_max"] = ReduceExtreme<true>;
  rows["reduce_min"] = ReduceExtreme<false>;
  rows["argmax"] = ArgMax;
  rows["count_beyond"] = CountBeyond;
}

}  // namespace meshtrain::device::pjrt
