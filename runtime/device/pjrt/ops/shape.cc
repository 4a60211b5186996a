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
  // Each part stands in its place, between zeros. Of floats the bits, for a -0 is no 0; of f64 on
  // CPUs alone, since XLA has no such step for TPUs.
  Module& m = l.m();
  const std::string element = parts[0].element;
  const int64_t width = 8 * mesh::DTypeBytes(l.type(op.results[0]).dtype);
  const bool sums = element == "f64" && !l.for_cpus(), bits = IsFloatElement(element) && !sums;
  Node whole;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Node part = bits ? m.Bits(parts[i], "ui" + std::to_string(width)) : parts[i];
    whole = i == 0 ? part : m.Binary(sums ? "add" : "or", whole, part);
  }
  l.Set(op.results[0], bits ? m.Bits(whole, element) : whole);
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
