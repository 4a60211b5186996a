// Elements in order along an axis, and where they stood (runtime/program/ops/sort.cc).
#include <limits>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// Sorted together with their places; stable, so that equal ones stay as they stood.
void InOrder(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t axis = op.attrs.Int("axis");
  const bool descending = op.attrs.Bool("descending");
  const bool has_nan = mesh::IsFloat(l.type(op.operands[0]).dtype);
  const bool narrow = a.dims[axis] <= std::numeric_limits<int32_t>::max();
  const Node places = m.Iota(narrow ? "i32" : "i64", a.dims, axis);
  const auto before = [&](Module& inside, const Node& x, const Node& y) {
    const Node by_number = inside.Compare(descending ? "GT" : "LT", x, y);
    if (!has_nan) return by_number;
    // A NaN, which compares with nothing, is above every number.
    const Node& low = descending ? y : x;
    const Node& high = descending ? x : y;
    const Node by_nan =
        inside.Binary("and", inside.Compare("EQ", low, low), inside.Compare("NE", high, high));
    return inside.Binary("or", by_number, by_nan);
  };
  const std::vector<Node> sorted = m.Sort({a, places}, axis, before);
  const mesh::TensorType& type = l.type(op.results[0]);
  const Node& wanted = sorted[op.kind == "argsort" ? 1 : 0];
  const Node first = m.Slice(wanted, Dims(type.dims.size(), 0), type.dims);
  l.Set(op.results[0], m.Convert(first, ElementOf(type.dtype)));
}

}  // namespace

void AddSort(Rows& rows) {
  rows["sort"] = InOrder;
  rows["argsort"] = InOrder;
}

}  // namespace meshtrain::device::pjrt
