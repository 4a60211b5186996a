#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

void Reshape(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Reshape(l.In(op, 0), l.type(op.results[0]).dims));
}

void Transpose(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Transpose(l.In(op, 0), op.attrs.Ints("permutation")));
}

void BroadcastTo(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Broadcast(l.In(op, 0), l.type(op.results[0]).dims));
}

void Concat(Lowering& l, const Op& op) {
  std::vector<Node> parts;
  for (size_t i = 0; i < op.operands.size(); ++i) parts.push_back(l.In(op, i));
  if (!op.attrs.Bool("overlaid")) {
    return l.Set(op.results[0], l.m().Concat(parts, op.attrs.Int("axis")));
  }
  // Each part stands in its place, between zeros.
  Node whole = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    whole = l.m().Binary(whole.element == "i1" ? "or" : "add", whole, parts[i]);
  }
  l.Set(op.results[0], whole);
}

void Reverse(Lowering& l, const Op& op) {
  l.Set(op.results[0], l.m().Reverse(l.In(op, 0), op.attrs.Ints("axes")));
}

void Slice(Lowering& l, const Op& op) {
  l.Set(op.results[0],
        l.m().Slice(l.In(op, 0), op.attrs.Ints("starts"), l.type(op.results[0]).dims));
}

void Pad(Lowering& l, const Op& op) {
  const Node a = l.In(op, 0);
  const Node value = l.m().Splat(a.element, {}, op.attrs.Double("value"));
  l.Set(op.results[0], l.m().Pad(a, value, op.attrs.Ints("before"), op.attrs.Ints("after")));
}

}  // namespace

void AddShape(Rows& rows) {
  rows["reshape"] = Reshape;
  rows["transpose"] = Transpose;
  rows["broadcast_to"] = BroadcastTo;
  rows["concat"] = Concat;
  rows["reverse"] = Reverse;
  rows["slice"] = Slice;
  rows["pad"] = Pad;
}

}  // namespace meshtrain::device::pjrt
