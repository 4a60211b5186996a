// Elements by numbers that another operand carries, and back. XLA moves numbers outside into the
// dimension, or leaves them out; what they give is put in its place here.
#include <limits>

#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// The ids of one call, as they count on this device, and which of them are good.
struct Ids {
  Node own;     // less what stands on the devices before
  Node inside;  // of the whole axis: i1
  Node here;    // of this device's part: i1

  Ids(Lowering& l, const Op& op, const Node& ids, int64_t rows) {
    Module& m = l.m();
    const Node zero = m.Splat("i64", ids.dims, 0);
    const auto below = [&](const Node& a, int64_t limit) {
      return m.Binary("and", m.Compare("GE", a, zero),
                      m.Compare("LT", a, m.Whole("i64", ids.dims, static_cast<uint64_t>(limit))));
    };
    const Node wide = m.Convert(ids, "i64");
    own = wide;
    if (op.attrs.Has("axes")) {
      const Node start = m.Binary("multiply", l.IndexAlong(op.attrs.Ints("axes")),
                                  m.Whole("i64", {}, static_cast<uint64_t>(rows)));
      own = m.Binary("subtract", wide, m.Broadcast(start, ids.dims));
    }
    inside = below(wide, op.attrs.Int("size", rows));
    here = m.Binary("and", inside, below(own, rows));
  }
};

// A result without elements, or of a table without rows, where no number is one: StableHLO has no
// slices of such. NaN, of which there may be none.
bool TakesNothing(Lowering& l, const Op& op, int64_t rows) {
  const mesh::TensorType& type = l.type(op.results[0]);
  if (type.num_elements() > 0 && rows > 0) return false;
  l.Set(op.results[0],
        l.m().Splat(ElementOf(type.dtype), type.dims, std::numeric_limits<double>::quiet_NaN()));
  return true;
}

void Gather(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node table = l.In(op, 0), given = l.In(op, 1);
  const int64_t axis = op.attrs.Int("axis");
  if (TakesNothing(l, op, table.dims[axis])) return;
  const Ids ids(l, op, given, table.dims[axis]);
  const Node taken = m.Gather(table, ids.own, axis);
  std::vector<int64_t> mapping;
  for (int d = 0; d < given.rank(); ++d) mapping.push_back(axis + d);
  const auto spread = [&](const Node& a) { return m.BroadcastInDim(a, taken.dims, mapping); };
  const Node own = m.Select(spread(ids.here), taken, m.Like(taken, 0));
  l.Set(op.results[0],
        m.Select(spread(ids.inside), own, m.Like(taken, std::numeric_limits<double>::quiet_NaN())));
}

void ScatterAdd(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node given = l.In(op, 0), updates = l.In(op, 1);
  const mesh::TensorType& type = l.type(op.results[0]);
  const int64_t axis = op.attrs.Int("axis");
  const Ids ids(l, op, given, type.dims[axis]);
  const std::string element = ElementOf(type.dtype);
  const Node sums = m.Scatter("add", m.Splat(element, type.dims, 0), ids.own, updates, axis);
  std::vector<int64_t> all;
  for (int d = 0; d < given.rank(); ++d) all.push_back(d);
  const Node good = m.Reduce("and", ids.inside, all, m.Splat("i1", {}, 1));
  l.Set(op.results[0], m.Select(m.Broadcast(good, type.dims), sums,
                                m.Like(sums, std::numeric_limits<double>::quiet_NaN())));
}

// The updates that the rows get: of equal ids, the one with the highest place.
void ScatterSet(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0), given = l.In(op, 1), updates = l.In(op, 2);
  const int64_t axis = op.attrs.Int("axis"), rows = a.dims[axis];
  const int64_t count = mesh::NumElements(given.dims);
  if (count == 0) {
    l.Set(op.results[0], a);
    return;
  }
  const Ids ids(l, op, m.Reshape(given, {count}), rows);
  const Node zeros = m.Splat("i64", {rows}, 0);
  const Node place =
      m.Scatter("maximum", m.Splat("i64", {rows}, -1), ids.own, m.Iota("i64", {count}, 0), 0);
  Dims flat(a.dims);
  flat[axis] = count;
  const Node taken = m.Gather(m.Reshape(updates, flat), m.Binary("maximum", place, zeros), axis);
  const Node chosen = m.BroadcastInDim(m.Compare("GE", place, zeros), a.dims, {axis});
  const Node good = m.Reduce("and", ids.inside, {0}, m.Splat("i1", {}, 1));
  l.Set(op.results[0], m.Select(m.Broadcast(good, a.dims), m.Select(chosen, taken, a),
                                m.Like(a, std::numeric_limits<double>::quiet_NaN())));
}

void TakeAlong(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0), given = l.In(op, 1);
  const int64_t axis = op.attrs.Int("axis");
  if (TakesNothing(l, op, a.dims[axis])) return;
  const Ids ids(l, op, given, a.dims[axis]);
  const Node taken = m.GatherAlong(a, ids.own, axis);
  const Node own = m.Select(ids.here, taken, m.Like(taken, 0));
  l.Set(op.results[0],
        m.Select(ids.inside, own, m.Like(taken, std::numeric_limits<double>::quiet_NaN())));
}

void AddAlong(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node given = l.In(op, 0), updates = l.In(op, 1);
  const mesh::TensorType& type = l.type(op.results[0]);
  const int64_t axis = op.attrs.Int("axis");
  const Ids ids(l, op, given, type.dims[axis]);
  const Node sums =
      m.ScatterAlong("add", m.Splat(ElementOf(type.dtype), type.dims, 0), ids.own, updates, axis);
  const Node good = m.Reduce("and", ids.inside, {axis}, m.Splat("i1", {}, 1), /*keep=*/true);
  l.Set(op.results[0], m.Select(m.Broadcast(good, type.dims), sums,
                                m.Like(sums, std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace

void AddGather(Rows& rows) {
  rows["gather"] = Gather;
  rows["scatter_add"] = ScatterAdd;
  rows["scatter_set"] = ScatterSet;
  rows["take_along"] = TakeAlong;
  rows["add_along"] = AddAlong;
}

}  // namespace meshtrain::device::pjrt
