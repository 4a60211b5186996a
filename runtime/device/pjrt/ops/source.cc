// Values out of nothing, and what reads the device's place in the mesh.
#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

void Constant(Lowering& l, const Op& op) {
  const mesh::TensorType& type = l.type(op.results[0]);
  const std::string element = ElementOf(type.dtype);
  l.Set(op.results[0], op.attrs.Has("values")
                           ? l.m().Literal(element, type.dims, op.attrs.Doubles("values"))
                           : l.m().Splat(element, type.dims, op.attrs.Double("value")));
}

void Iota(Lowering& l, const Op& op) {
  Module& m = l.m();
  const mesh::TensorType& type = l.type(op.results[0]);
  const int64_t axis = op.attrs.Int("axis");
  Node index = m.Iota("i64", type.dims, axis);
  if (op.attrs.Has("layout")) {
    const auto layout = mesh::Layout::Parse(op.attrs.Text("layout"), l.mesh());
    const Node offset = l.OffsetIn(*layout, static_cast<int>(axis), type.dims[axis]);
    index = m.Binary("add", index, m.Broadcast(offset, type.dims));
  }
  l.Set(op.results[0], m.Convert(index, ElementOf(type.dtype)));
}

// This device's chunk of a whole dimension, zeros past its end.
void ShardSlice(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t dim = op.attrs.Int("dim"), group = op.attrs.Int("group", 1);
  const int64_t chunk = l.type(op.results[0]).dims[dim];
  Dims before(a.dims.size(), 0), after(a.dims.size(), 0);
  after[dim] = chunk * group - a.dims[dim];
  const Node padded = m.Pad(a, m.Splat(a.element, {}, 0), before, after);
  const Node start = m.Binary("multiply", l.IndexAlong(op.attrs.Ints("axes")),
                              m.Whole("i64", {}, static_cast<uint64_t>(chunk)));
  l.Set(op.results[0], m.DynamicSlice(padded, dim, start, chunk));
}

// The operand with the elements past the device's valid extent replaced.
void MaskPad(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Node a = l.In(op, 0);
  const int64_t dim = op.attrs.Int("dim");
  const Node start = m.Binary("multiply", l.IndexAlong(op.attrs.Ints("axes")),
                              m.Whole("i64", {}, static_cast<uint64_t>(a.dims[dim])));
  const Node at = m.Binary("add", m.Iota("i64", a.dims, dim), m.Broadcast(start, a.dims));
  const Node valid =
      m.Compare("LT", at, m.Whole("i64", a.dims, static_cast<uint64_t>(op.attrs.Int("size"))));
  l.Set(op.results[0], m.Select(valid, a, m.Like(a, op.attrs.Double("value"))));
}

}  // namespace

void AddSource(Rows& rows) {
  rows["constant"] = Constant;
  rows["fill"] = Constant;
  rows["iota"] = Iota;
  rows["shard_slice"] = ShardSlice;
  rows["mask_pad"] = MaskPad;
}

}  // namespace meshtrain::device::pjrt
