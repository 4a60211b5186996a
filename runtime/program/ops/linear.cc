// Linear algebra.
#include <algorithm>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// The matrices' dimensions of one call: [..., m, k] x [..., k, n]. With `sum_batch`, which goes
// with transpose_a alone, the products of the leading dimensions are added up: [..., k, m] x [...,
// k, n]
// -> [m, n]. That is a kernel's gradient, in which a split batch or sequence leaves a pending sum.
struct MatMulDims {
  int64_t m = 0, k = 0, n = 0;
  size_t batch_a = 0, batch_b = 0;  // leading dimensions
  bool transpose_a = false, transpose_b = false, sum_batch = false;

  explicit MatMulDims(const OpCall& call)
      : batch_a(call.operands[0].dims.size() - 2),
        batch_b(call.operands[1].dims.size() - 2),
        transpose_a(call.attrs.Bool("transpose_a")),
        transpose_b(call.attrs.Bool("transpose_b")),
        sum_batch(call.attrs.Bool("sum_batch")) {
    const Dims& a = call.operands[0].dims;
    const Dims& b = call.operands[1].dims;
    m = a[batch_a + (transpose_a ? 1 : 0)];
    k = a[batch_a + (transpose_a ? 0 : 1)];
    n = b[batch_b + (transpose_b ? 0 : 1)];
  }
};

Result<Types> InferMatMul(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"transpose_a", AttrKind::kBool, false},
                                             {"transpose_b", AttrKind::kBool, false},
                                             {"sum_batch", AttrKind::kBool, false}}));
  const TensorType& a = call.operands[0];
  const TensorType& b = call.operands[1];
  MT_RETURN_IF_ERROR(CheckOneDType(call.operands));
  MT_RETURN_IF_ERROR(CheckAccepts(a, Accepts::kFloat));
  if (a.rank() < 2 || b.rank() < 2) {
    return InvalidArgument("expected operands of at least 2 dimensions, got: " +
                           TypesText(call.operands));
  }
  const MatMulDims d(call);
  const int64_t b_rows = b.dims[d.batch_b + (d.transpose_b ? 1 : 0)];
  if (d.k != b_rows) {
    std::string text = a.ToString() + (d.transpose_a ? " (transposed)" : "") + " and " +
                       b.ToString() + (d.transpose_b ? " (transposed)" : "");
    return InvalidArgument("expected as many columns on the left as rows on the right, got: " +
                           text);
  }
  const Dims batch_a(a.dims.begin(), a.dims.end() - 2);
  const Dims batch_b(b.dims.begin(), b.dims.end() - 2);
  if (!batch_a.empty() && !batch_b.empty() && batch_a != batch_b) {
    return InvalidArgument("expected equal leading dimensions, or none on one side, got: " +
                           TypesText(call.operands));
  }
  if (d.sum_batch && (!d.transpose_a || d.transpose_b || batch_a != batch_b)) {
    return InvalidArgument(
        "expected with sum_batch equal leading dimensions, transpose_a and no "
        "transpose_b, got: " +
        TypesText(call.operands));
  }
  Dims dims = d.sum_batch ? Dims() : batch_a.empty() ? batch_b : batch_a;
  dims.push_back(d.m);
  dims.push_back(d.n);
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return Types{{a.dtype, std::move(dims)}};
}

FactorTable MatMulTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const MatMulDims d(call);
  const size_t batch = results[0].dims.size() - 2;
  for (size_t i = 0; i < std::max(d.batch_a, d.batch_b); ++i) {
    const int64_t size = call.operands[d.batch_a > 0 ? 0 : 1].dims[i];
    const int f = table.Add(size, d.sum_batch ? FactorKind::kSum : FactorKind::kMap);
    if (d.batch_a > 0) table.OnOperand(0, i, f);
    if (d.batch_b > 0) table.OnOperand(1, i, f);
    if (!d.sum_batch) table.OnResult(0, i, f);
  }
  const int m = table.Add(d.m, FactorKind::kMap);
  const int k = table.Add(d.k, FactorKind::kSum);
  const int n = table.Add(d.n, FactorKind::kMap);
  table.OnOperand(0, d.batch_a + (d.transpose_a ? 1 : 0), m);
  table.OnOperand(0, d.batch_a + (d.transpose_a ? 0 : 1), k);
  table.OnOperand(1, d.batch_b + (d.transpose_b ? 1 : 0), k);
  table.OnOperand(1, d.batch_b + (d.transpose_b ? 0 : 1), n);
  table.OnResult(0, batch, m);
  table.OnResult(0, batch + 1, n);
  return table.Take();
}

Cost MatMulCost(const OpCall& call, std::span<const TensorType> results) {
  Cost cost = ElementCost(call, results, 0);
  const MatMulDims d(call);
  double summed = static_cast<double>(d.k);
  for (size_t i = 0; d.sum_batch && i < d.batch_a; ++i) {
    summed *= static_cast<double>(call.operands[0].dims[i]);
  }
  cost.flops = 2.0 * static_cast<double>(results[0].num_elements()) * summed;
  return cost;
}

// With a' and b' the operands as multiplied: d a' = g b'^T, d b' = a'^T g; an operand that was
// transposed gets the transpose of that, and one without the leading dimensions gets the sum over
// them.
std::vector<Value> MatMulGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  const Value a = operands[0], b = operands[1], g = cotangents[0];
  const bool ta = op.attrs.Bool("transpose_a"), tb = op.attrs.Bool("transpose_b");
  if (op.attrs.Bool("sum_batch")) return {MatMul(b, g, false, true), MatMul(a, g)};
  const Value da = ta ? MatMul(b, g, tb, true) : MatMul(g, b, false, !tb);
  if (!ta && b.rank() == 2 && a.rank() > 2) {
    // One product over all rows instead of a sum over products.
    return {da, Record("matmul", {tb ? g : a, tb ? a : g},
                       {{"transpose_a", true}, {"transpose_b", false}, {"sum_batch", true}})};
  }
  const Value db = tb ? MatMul(g, a, true, ta) : MatMul(a, g, !ta, false);
  return {SumTo(da, a.dims()), SumTo(db, b.dims())};
}

}  // namespace

void RegisterLinearOps(Registry& registry) {
  OpDef matmul;
  matmul.kind = "matmul";
  matmul.min_operands = matmul.max_operands = 2;
  matmul.infer = InferMatMul;
  matmul.factors = MatMulTable;
  matmul.linearity = {Linearity::kAlone};
  matmul.gradient = MatMulGradient;
  matmul.cost = MatMulCost;
  registry.Add(std::move(matmul));
}

Value MatMul(const Operand& a, const Operand& b, bool transpose_a, bool transpose_b) {
  return Record("matmul", {a, b}, {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}});
}

}  // namespace meshtrain::program
