#include "runtime/device/pjrt/ops/rows.h"

namespace meshtrain::device::pjrt {
namespace {

using program::Op;

// Leading dimensions that one side lacks are stretched to the other's.
void MatMul(Lowering& l, const Op& op) {
  Module& m = l.m();
  const Dims& result = l.type(op.results[0]).dims;
  const Dims batch(result.begin(), result.end() - 2);
  const auto with_batch = [&](const Node& a) {
    Dims dims = batch;
    dims.insert(dims.end(), a.dims.end() - 2, a.dims.end());
    return m.Broadcast(a, dims);
  };
  l.Set(op.results[0],
        m.Dot(with_batch(l.In(op, 0)), with_batch(l.In(op, 1)), static_cast<int>(batch.size()),
              op.attrs.Bool("transpose_a"), op.attrs.Bool("transpose_b")));
}

}  // namespace

void AddLinear(Rows& rows) { rows["matmul"] = MatMul; }

}  // namespace meshtrain::device::pjrt
