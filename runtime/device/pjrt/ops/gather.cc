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

void Gather(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node table = l.In(op, 0), given = l.In(op, 1);
  const int64_t axis = op.attrs.Int("axis");
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
  const Node sums = m.ScatterAdd(m.Splat(element, type.dims, 0), ids.own, updates, axis);
  std::vector<int64_t> all;
  for (int d = 0; d < given.rank(); ++d) all.push_back(d);
  const Node good = m.Reduce("and", ids.inside, all, m.Splat("i1", {}, 1));
  l.Set(op.results[0], m.Select(m.Broadcast(good, type.dims), sums,
                                m.Like(sums, std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace

void AddGather(Rows& rows) {
  rows["gather"] = Gather;
  rows["scatter_add"] = ScatterAdd;
}

}  // namespace meshtrain::device::pjrt
