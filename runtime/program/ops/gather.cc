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

// Updates of what ids say along the axis of `of`.
Status CheckUpdates(const TensorType& updates, const TensorType& of, int64_t axis,
                    const TensorType& ids) {
  const TensorType want{of.dtype, Replaced(of.dims, axis, ids.dims)};
  if (updates == want) return OkStatus();
  return InvalidArgument("expected updates of " + want.ToString() + " for ids of " +
                         ids.ToString() + " along axis " + std::to_string(axis) + " of " +
                         IntsText(of.dims) + ", got: " + updates.ToString());
}

// Ids with a number for each element of `of`, or for more or fewer along the axis.
Status CheckAlong(const TensorType& ids, const Dims& of, int64_t axis) {
  Dims want = of;
  if (ids.dims.size() == of.size()) want[axis] = ids.dims[axis];
  if (ids.dims == want) return OkStatus();
  return InvalidArgument("expected ids of the dimensions " + IntsText(of) + ", but for axis " +
                         std::to_string(axis) + ", got: " + ids.ToString());
}

// The axis of a call of (table, ids, ...), whose attributes and these two are in order.
Result<int64_t> AxisOfTable(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt},
                                             {"axes", AttrKind::kInts, false},
                                             {"size", AttrKind::kInt, false}}));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], Accepts::kFloat));
  MT_RETURN_IF_ERROR(CheckIds(call.operands[1]));
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, call.operands[0].rank()));
  return axis;
}

// The result's dimensions of a call of (ids, updates), whose attributes and operands are in order,
// but for whether they fit together.
Result<Dims> DimsOfSums(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt},
                                             {"dims", AttrKind::kInts},
                                             {"axes", AttrKind::kInts, false},
                                             {"size", AttrKind::kInt, false}}));
  MT_RETURN_IF_ERROR(CheckIds(call.operands[0]));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[1], Accepts::kFloat));
  MT_ASSIGN_OR_RETURN(Dims dims, DimsAttr(call.attrs));
  MT_RETURN_IF_ERROR(CheckAxis(call.attrs.Int("axis"), static_cast<int>(dims.size())));
  return dims;
}

// --- gather {axis} (table [P..., V, S...], ids [N...]) -> [P..., N..., S...]; of a shard, with
// `axes` and `size` (registry.h)

Result<Types> InferGather(const OpCall& call) {
  MT_ASSIGN_OR_RETURN(const int64_t axis, AxisOfTable(call));
  const TensorType& table = call.operands[0];
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
  MT_ASSIGN_OR_RETURN(Dims dims, DimsOfSums(call));
  const TensorType& ids = call.operands[0];
  const TensorType& updates = call.operands[1];
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckUpdates(updates, {updates.dtype, dims}, axis, ids));
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

// --- scatter_set {axis} (a [P..., V, S...], ids [N...], updates [P..., N..., S...]) -> a's type:
// a, with each update in the place that its id says. Of equal ids the last one counts, so they are
// needed whole, and with them the updates; a itself may lie as it will.

Result<Types> InferScatterSet(const OpCall& call) {
  MT_ASSIGN_OR_RETURN(const int64_t axis, AxisOfTable(call));
  const TensorType& a = call.operands[0];
  MT_RETURN_IF_ERROR(CheckUpdates(call.operands[2], a, axis, call.operands[1]));
  return Types{a};
}

FactorTable ScatterSetTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& a = call.operands[0].dims;
  const Dims& ids = call.operands[1].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < a.size(); ++d) {
    const int f = table.Add(a[d], FactorKind::kMap);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, f);
    if (d != axis) table.OnOperand(2, d < axis ? d : d + ids.size() - 1, f);
  }
  for (size_t d = 0; d < ids.size(); ++d) {
    const int f = table.Add(ids[d], FactorKind::kWhole);
    table.OnOperand(1, d, f);
    table.OnOperand(2, axis + d, f);
  }
  table.OnPlace({.result = true, .tensor = 0, .dim = static_cast<int>(axis)});
  return table.Take();
}

// Of `a`: what was not overwritten. Of the updates: those that the result holds.
std::vector<Value> ScatterSetGradient(Builder& b, const Op& op, Span operands, Span,
                                      Span cotangents) {
  const Value ids = operands[1], updates = operands[2], g = cotangents[0];
  const int64_t axis = op.attrs.Int("axis");
  const auto zeros = [&](Dims dims, DType dtype) {
    return b.Append1("fill", {},
                     {{"dims", std::move(dims)}, {"value", 0.0}, {"dtype", DTypeText(dtype)}});
  };
  const auto set = [&](Value to, Value with, int64_t along) {
    return Record("scatter_set", {to, ids, with}, {{"axis", along}});
  };
  const Value of_a = set(g, zeros(updates.dims(), updates.dtype()), axis);
  Value of_updates = Record("gather", {g, ids}, {{"axis", axis}});
  const int64_t n = ids.type().num_elements();
  if (n > 1) {
    // Each id's place among them, put where the id says: of equal ones the last finds its own.
    const DType exact = n <= int64_t{1} << 24 ? DType::kF32 : DType::kF64;
    const Value places =
        Reshape(b.Append1("iota", {},
                          {{"dims", Dims{n}}, {"axis", int64_t{0}}, {"dtype", DTypeText(exact)}}),
                ids.dims());
    const Value held = set(zeros({g.dims()[axis]}, exact), places, 0);
    const Value last = Equal(Record("gather", {held, ids}, {{"axis", int64_t{0}}}), places);
    Dims dims(updates.rank(), 1);
    const Dims of_ids = ids.dims();
    std::copy(of_ids.begin(), of_ids.end(), dims.begin() + axis);
    of_updates = Select(Reshape(last, dims), of_updates, 0.0);
  }
  return {of_a, Value(), of_updates};
}

// --- take_along {axis} (a [P..., V, S...], ids [P..., N, S...]) -> [P..., N, S...]: of each row of
// a along the axis the elements that its own ids say; of a shard as gather

Result<Types> InferTakeAlong(const OpCall& call) {
  MT_ASSIGN_OR_RETURN(const int64_t axis, AxisOfTable(call));
  const TensorType& a = call.operands[0];
  const TensorType& ids = call.operands[1];
  MT_RETURN_IF_ERROR(CheckAlong(ids, a.dims, axis));
  return Types{{a.dtype, ids.dims}};
}

FactorTable TakeAlongTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& from = call.operands[0].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < from.size(); ++d) {
    const int f = table.Add(from[d], d == axis ? FactorKind::kSum : FactorKind::kMap);
    table.OnOperand(0, d, f);
    const int taken = d == axis ? table.Add(results[0].dims[d], FactorKind::kMap) : f;
    table.OnOperand(1, d, taken);
    table.OnResult(0, d, taken);
  }
  table.OnPlace({.result = false, .tensor = 0, .dim = static_cast<int>(axis)});
  return table.Take();
}

std::vector<Value> TakeAlongGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  return {Record("add_along", {operands[1], cotangents[0]},
                 {{"axis", op.attrs.Int("axis")}, {"dims", operands[0].dims()}}),
          Value()};
}

// --- add_along {axis, dims} (ids and updates [P..., N, S...]) -> dims = [P..., V, S...]: zeros, to
// which each update is added in its own row, where its id says

Result<Types> InferAddAlong(const OpCall& call) {
  MT_ASSIGN_OR_RETURN(Dims dims, DimsOfSums(call));
  const TensorType& ids = call.operands[0];
  const TensorType& updates = call.operands[1];
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAlong(ids, dims, axis));
  if (updates.dims != ids.dims) {
    return InvalidArgument("expected an update for each id, got: " + TypesText(call.operands));
  }
  return Types{{updates.dtype, std::move(dims)}};
}

FactorTable AddAlongTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& to = results[0].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < to.size(); ++d) {
    const int f = table.Add(to[d], FactorKind::kMap);
    table.OnResult(0, d, f);
    const int added = d == axis ? table.Add(call.operands[0].dims[d], FactorKind::kSum) : f;
    table.OnOperand(0, d, added);
    table.OnOperand(1, d, added);
  }
  table.OnPlace({.result = true, .tensor = 0, .dim = static_cast<int>(axis)});
  return table.Take();
}

std::vector<Value> AddAlongGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  return {Value(),
          Record("take_along", {cotangents[0], operands[0]}, {{"axis", op.attrs.Int("axis")}})};
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
  OpDef set = Row("scatter_set", InferScatterSet, ScatterSetTable, {kJoint, kNone, kJoint},
                  ScatterSetGradient);
  set.min_operands = set.max_operands = 3;
  set.moves_data = true;
  registry.Add(std::move(set));
  registry.Add(
      Row("take_along", InferTakeAlong, TakeAlongTable, {kAlone, kNone}, TakeAlongGradient));
  registry.Add(Row("add_along", InferAddAlong, AddAlongTable, {kNone, kAlone}, AddAlongGradient));
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

Value ScatterSet(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis) {
  return Record("scatter_set", {a, ids, updates}, {{"axis", FromStart(axis, TypeOf(a).rank())}});
}

Value TakeAlong(const Operand& a, const Operand& ids, int64_t axis) {
  return Record("take_along", {a, ids}, {{"axis", FromStart(axis, TypeOf(a).rank())}});
}

Value AddAlong(const Operand& a, const Operand& ids, const Operand& updates, int64_t axis) {
  const TensorType type = TypeOf(a);
  const Value sums = Record("add_along", {ids, updates},
                            {{"axis", FromStart(axis, type.rank())}, {"dims", type.dims}});
  return Add(a, Operand(sums, a.where()));
}

}  // namespace meshtrain::program
