// Elements in order along an axis, and where they stood. A shard of the axis cannot tell the order
// alone, so the axis is needed whole; everything beside it moves freely.
//
// One order for every backend and layout: a NaN is larger than every number, 0 and -0 are equal,
// and of equal elements (NaNs too) the one that stood first comes first, also where the largest
// come first. So there is one right result, and the values and the indices agree.
#include <algorithm>
#include <cmath>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// --- sort, argsort {axis, descending, count}: the first `count` along the axis, none: all

Result<Types> InferInOrder(const OpCall& call, DType dtype) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt},
                                             {"descending", AttrKind::kBool, false},
                                             {"count", AttrKind::kInt, false}}));
  const TensorType& a = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAccepts(a, Accepts::kNumber));
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, a.rank()));
  Dims dims = a.dims;
  if (call.attrs.Has("count")) {
    const int64_t count = call.attrs.Int("count");
    if (count < 1 || count > dims[axis]) {
      return InvalidArgument("expected a count of 1 to the " + std::to_string(dims[axis]) +
                             " elements along axis " + std::to_string(axis) + " of " +
                             a.ToString() + ", got: " + std::to_string(count));
    }
    dims[axis] = count;
  }
  return Types{{dtype, std::move(dims)}};
}
Result<Types> InferSort(const OpCall& call) { return InferInOrder(call, call.operands[0].dtype); }
Result<Types> InferArgSort(const OpCall& call) { return InferInOrder(call, DType::kI64); }

FactorTable InOrderTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& from = call.operands[0].dims;
  const Dims& to = results[0].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < from.size(); ++d) {
    const int f = table.Add(from[d], d == axis ? FactorKind::kWhole : FactorKind::kMap);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, to[d] == from[d] ? f : table.Add(to[d], FactorKind::kWhole));
  }
  return table.Take();
}

// Comparisons: as many for each element as its row has halves.
Cost InOrderCost(const OpCall& call, std::span<const TensorType> results) {
  const int64_t n = call.operands[0].dims[call.attrs.Int("axis")];
  return ElementCost(call, results, std::log2(static_cast<double>(std::max<int64_t>(2, n))));
}

// Back to where each element stood.
std::vector<Value> SortGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  const Value stood = Record("argsort", {operands[0]}, op.attrs);
  return {Record("add_along", {stood, cotangents[0]},
                 {{"axis", op.attrs.Int("axis")}, {"dims", operands[0].dims()}})};
}

OpDef InOrder(std::string kind, decltype(OpDef::infer) infer, decltype(OpDef::gradient) gradient) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = 1;
  row.infer = infer;
  row.factors = InOrderTable;
  row.gradient = gradient;
  row.cost = InOrderCost;
  return row;
}

Attrs OrderOf(const Operand& a, int64_t axis, bool descending) {
  return {{"axis", FromStart(axis, TypeOf(a).rank())}, {"descending", descending}};
}

}  // namespace

void RegisterSortOps(Registry& registry) {
  registry.Add(InOrder("sort", InferSort, SortGradient));
  registry.Add(InOrder("argsort", InferArgSort, nullptr));
}

Value Sort(const Operand& a, int64_t axis, bool descending) {
  return Record("sort", {a}, OrderOf(a, axis, descending));
}

Value ArgSort(const Operand& a, int64_t axis, bool descending) {
  return Record("argsort", {a}, OrderOf(a, axis, descending));
}

Top TopK(const Operand& a, int64_t k, int64_t axis) {
  Attrs attrs = OrderOf(a, axis, true);
  attrs.Set("count", k);
  const Value indices = Record("argsort", {a}, attrs);
  // Integers cannot be taken by numbers that might be wrong (ops/gather.cc).
  if (!mesh::IsFloat(TypeOf(a).dtype)) return {Record("sort", {a}, attrs), indices};
  return {TakeAlong(a, Operand(indices, a.where()), axis), indices};
}

}  // namespace meshtrain::program
