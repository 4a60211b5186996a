// Ops that take elements by numbers which another operand carries, and put them back.
//
// Along the axis that the numbers count on, a shard holds some of them: a device gives what is its
// own and 0 for the rest, so what a split table gives is a pending sum, and a gradient is added up
// where its row lies. The table itself never moves.
//
// A number outside the axis is never taken for another one: what it would give is NaN.
#include <algorithm>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

Status CheckIds(const TensorType& ids) {
  if (ids.dtype == DType::kI32 || ids.dtype == DType::kI64) return OkStatus();
  return InvalidArgument("expected ids of i32 or i64, got: " + ids.ToString());
}

// [P..., V, S...] with ids [N...] in the place of the axis: [P..., N..., S...].
Dims Replaced(const Dims& table, int64_t axis, const Dims& ids) {
  Dims dims(table.begin(), table.begin() + axis);
  dims.insert(dims.end(), ids.begin(), ids.end());
  dims.insert(dims.end(), table.begin() + axis + 1, table.end());
  return dims;
}

// --- gather {axis} (table [P..., V, S...], ids [N...]) -> [P..., N..., S...]; of a shard, with
// `axes` and `size` (registry.h)

Result<Types> InferGather(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt},
                                             {"axes", AttrKind::kInts, false},
                                             {"size", AttrKind::kInt, false}}));
  const TensorType& table = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAccepts(table, Accepts::kFloat));
  MT_RETURN_IF_ERROR(CheckIds(call.operands[1]));
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, table.rank()));
  Dims dims = Replaced(table.dims, axis, call.operands[1].dims);
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return Types{{table.dtype, std::move(dims)}};
}

FactorTable GatherTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& from = call.operands[0].dims;
  const Dims& ids = call.operands[1].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < from.size(); ++d) {
    const int f = table.Add(from[d], d == axis ? FactorKind::kSum : FactorKind::kMap);
    table.OnOperand(0, d, f);
    if (d != axis) table.OnResult(0, d < axis ? d : d + ids.size() - 1, f);
  }
  for (size_t d = 0; d < ids.size(); ++d) {
    const int f = table.Add(ids[d], FactorKind::kMap);
    table.OnOperand(1, d, f);
    table.OnResult(0, axis + d, f);
  }
  table.OnPlace({.result = false, .tensor = 0, .dim = static_cast<int>(axis)});
  return table.Take();
}

std::vector<Value> GatherGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  return {Record("scatter_add", {operands[1], cotangents[0]},
                 {{"axis", op.attrs.Int("axis")}, {"dims", operands[0].dims()}}),
          Value()};
}

// --- scatter_add {axis, dims} (ids [N...], updates [P..., N..., S...]) -> dims = [P..., V, S...]:
// zeros, to which each update is added where its id says

Result<Types> InferScatterAdd(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt},
                                             {"dims", AttrKind::kInts},
                                             {"axes", AttrKind::kInts, false},
                                             {"size", AttrKind::kInt, false}}));
  const TensorType& ids = call.operands[0];
  const TensorType& updates = call.operands[1];
  MT_RETURN_IF_ERROR(CheckIds(ids));
  MT_RETURN_IF_ERROR(CheckAccepts(updates, Accepts::kFloat));
  MT_ASSIGN_OR_RETURN(Dims dims, DimsAttr(call.attrs));
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, static_cast<int>(dims.size())));
  if (const Dims want = Replaced(dims, axis, ids.dims); updates.dims != want) {
    return InvalidArgument("expected updates of " + TensorType{updates.dtype, want}.ToString() +
                           " for ids of " + ids.ToString() + " along axis " + std::to_string(axis) +
                           " of " + IntsText(dims) + ", got: " + updates.ToString());
  }
  return Types{{updates.dtype, std::move(dims)}};
}

FactorTable ScatterAddTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& ids = call.operands[0].dims;
  const Dims& to = results[0].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < to.size(); ++d) {
    const int f = table.Add(to[d], FactorKind::kMap);
    table.OnResult(0, d, f);
    if (d != axis) table.OnOperand(1, d < axis ? d : d + ids.size() - 1, f);
  }
  for (size_t d = 0; d < ids.size(); ++d) {
    const int f = table.Add(ids[d], FactorKind::kSum);
    table.OnOperand(0, d, f);
    table.OnOperand(1, axis + d, f);
  }
  table.OnPlace({.result = true, .tensor = 0, .dim = static_cast<int>(axis)});
  return table.Take();
}

std::vector<Value> ScatterAddGradient(Builder&, const Op& op, Span operands, Span,
                                      Span cotangents) {
  return {Value(),
          Record("gather", {cotangents[0], operands[0]}, {{"axis", op.attrs.Int("axis")}})};
}

OpDef Row(std::string kind, decltype(OpDef::infer) infer, decltype(OpDef::factors) factors,
          std::vector<Linearity> linearity, decltype(OpDef::gradient) gradient) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = 2;
  row.infer = infer;
  row.factors = factors;
  row.linearity = std::move(linearity);
  row.gradient = gradient;
  return row;
}

}  // namespace

void RegisterGatherOps(Registry& registry) {
  using enum Linearity;
  registry.Add(Row("gather", InferGather, GatherTable, {kAlone, kNone}, GatherGradient));
  registry.Add(
      Row("scatter_add", InferScatterAdd, ScatterAddTable, {kNone, kAlone}, ScatterAddGradient));
}

Value Gather(const Operand& table, const Operand& ids, int64_t axis) {
  return Record("gather", {table, ids}, {{"axis", FromStart(axis, TypeOf(table).rank())}});
}

Value SegmentSum(const Operand& updates, const Operand& ids, int64_t segments) {
  Dims dims = TypeOf(updates).dims;
  const size_t of_ids = TypeOf(ids).dims.size();
  dims.erase(dims.begin(), dims.begin() + static_cast<int64_t>(std::min(of_ids, dims.size())));
  dims.insert(dims.begin(), segments);
  return Record("scatter_add", {ids, updates}, {{"axis", int64_t{0}}, {"dims", std::move(dims)}});
}

Value ScatterAdd(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis) {
  const TensorType type = TypeOf(a);
  const Value sums = Record("scatter_add", {ids, updates},
                            {{"axis", FromStart(axis, type.rank())}, {"dims", type.dims}});
  return Add(a, Operand(sums, a.where()));
}

}  // namespace meshtrain::program
