// Blocks of a dimension (sharding/windows.h): what a window needs of its neighbours' chunks.
#include <algorithm>

#include "runtime/device/pjrt/ops/rows.h"
#include "runtime/sharding/windows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// A number for each member of the group; the device's own: i64[].
Node Own(Module& m, const std::vector<int64_t>& numbers, const Node& place) {
  return m.Reshape(m.DynamicSlice(m.Integers("i64", numbers), 0, place, 1), {});
}

// Dimension `dim` with `before` and `after` more.
Node Around(Module& m, const Node& a, int64_t dim, int64_t before, int64_t after, double value) {
  Dims low(a.dims.size(), 0), high = low;
  low[dim] = before;
  high[dim] = after;
  return m.Pad(a, m.Splat(a.element, {}, value), low, high);
}

// This device's block of what it has itself.
void ShardWindow(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t dim = op.attrs.Int("dim"), extent = op.attrs.Int("extent");
  std::vector<int64_t> starts = op.attrs.Ints("starts");
  const int64_t before = std::max<int64_t>(0, -*std::min_element(starts.begin(), starts.end()));
  const int64_t end = *std::max_element(starts.begin(), starts.end()) + extent;
  const int64_t after = std::max<int64_t>(0, end - a.dims[dim]);
  for (int64_t& start : starts) start += before;
  const Node padded = Around(m, a, dim, before, after, op.attrs.Double("value"));
  const Node start = Own(m, starts, l.IndexAlong(op.attrs.Ints("axes")));
  l.Set(op.results[0], m.DynamicSlice(padded, dim, start, extent));
}

// A permutation for each distance that rows have to go.
void Halo(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t dim = op.attrs.Int("dim"), extent = op.attrs.Int("extent");
  const std::vector<int64_t> axes = op.attrs.Ints("axes");
  const sharding::Blocks blocks{op.attrs.Ints("starts"), extent};
  const size_t members = blocks.starts.size();
  const Module::Groups groups = l.GroupsOf(axes);
  const Node place = l.IndexAlong(axes);
  Dims dims = a.dims;
  dims[dim] = extent;
  Node block = m.Splat(a.element, dims, op.attrs.Double("value"));
  const Node at = m.Iota("i64", dims, dim);
  for (const sharding::HaloShift& shift : sharding::HaloShifts(op.attrs.Int("size"), blocks)) {
    std::vector<int64_t> from(members, 0), to(members, 0), end(members, 0);
    Module::Groups pairs;  // sender, receiver
    for (const sharding::HaloPiece& piece : shift.pieces) {
      from[piece.sender] = piece.from;
      to[piece.receiver] = piece.to;
      end[piece.receiver] = piece.to + piece.count;
      for (const auto& group : groups) {
        pairs.push_back({group[piece.sender], group[piece.receiver]});
      }
    }
    // A piece may be shorter than the longest: what follows it is not taken out.
    const Node long_enough = Around(m, a, dim, 0, shift.rows, 0);
    Node rows = m.DynamicSlice(long_enough, dim, Own(m, from, place), shift.rows);
    if (shift.shift != 0) rows = m.Permute(rows, pairs);
    // Row r of it stands at to + r of the block.
    const Node begin = Own(m, to, place);
    const Node offset =
        m.Binary("subtract", m.Whole("i64", {}, static_cast<uint64_t>(extent)), begin);
    const Node placed =
        m.DynamicSlice(Around(m, rows, dim, extent, extent, 0), dim, offset, extent);
    const Node taken = m.Binary("and", m.Compare("GE", at, m.Broadcast(begin, dims)),
                                m.Compare("LT", at, m.Broadcast(Own(m, end, place), dims)));
    block = m.Select(taken, placed, block);
  }
  l.Set(op.results[0], block);
}

}  // namespace

void AddHalo(Rows& rows) {
  rows["halo"] = Halo;
  rows["shard_window"] = ShardWindow;
}

}  // namespace meshtrain::device::pjrt
