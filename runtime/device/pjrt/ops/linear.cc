#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// Leading dimensions that one side lacks are stretched to the other's.
void MatMul(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Dims& result = l.type(op.results[0]).dims;
  const Node a = l.In(op, 0), b = l.In(op, 1);
  const bool ta = op.attrs.Bool("transpose_a"), tb = op.attrs.Bool("transpose_b");
  const auto rows = [&](const Node& of) {
    const Dims lead(of.dims.begin(), of.dims.end() - 1);
    return m.Reshape(of, {mesh::NumElements(lead), of.dims.back()});
  };
  if (op.attrs.Bool("sum_batch")) {
    return l.Set(op.results[0], m.Dot(rows(a), rows(b), 0, true, false));
  }
  if (!ta && a.rank() > 2 && b.rank() == 2) {
    return l.Set(op.results[0], m.Reshape(m.Dot(rows(a), b, 0, false, tb), result));
  }
  const Dims batch(result.begin(), result.end() - 2);
  const auto with_batch = [&](const Node& of) {
    Dims dims = batch;
    dims.insert(dims.end(), of.dims.end() - 2, of.dims.end());
    return m.Broadcast(of, dims);
  };
  l.Set(op.results[0], m.Dot(with_batch(a), with_batch(b), static_cast<int>(batch.size()), ta, tb));
}

}  // namespace

void AddLinear(Rows& rows) { rows["matmul"] = MatMul; }

}  // namespace meshtrain::device::pjrt
