// Ops that only partitioned programs hold, and programs traced per replica (sharding/sharding.h,
// Partitioned). `axes` are mesh axes and `group` is the product of their sizes, so that types
// follow from the op alone. A dimension of D elements over n devices is stored in chunks of
// ceil(D/n), padded at the end.
#include <algorithm>

#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

int64_t Chunk(int64_t size, int64_t group) { return size / group + (size % group != 0 ? 1 : 0); }

Status CheckGroup(const OpCall& call) {
  const int64_t group = call.attrs.Int("group", 1);
  if (group >= 1) return OkStatus();
  return InvalidArgument("expected a group of at least 1 device, got: " + std::to_string(group));
}

Status CheckReduction(const OpCall& call) {
  const std::string reduction = call.attrs.Text("reduction");
  if (reduction != "sum" && reduction != "max" && reduction != "min") {
    return InvalidArgument("expected the reduction sum, max or min, got: " + reduction);
  }
  return CheckAccepts(call.operands[0], Accepts::kNumber);
}

// Dimension `dim` of the operand is a chunk of a dimension of `size`.
Status CheckChunk(const OpCall& call, int64_t dim) {
  const int64_t size = call.attrs.Int("size"), group = call.attrs.Int("group", 1);
  const TensorType& a = call.operands[0];
  if (size >= 0 && a.dims[dim] == Chunk(size, group)) return OkStatus();
  return InvalidArgument("expected in dimension " + std::to_string(dim) + " a chunk of " +
                         std::to_string(size) + " elements over " + std::to_string(group) +
                         " devices, got: " + a.ToString());
}

Result<Types> InferAllReduce(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(
      call.attrs,
      {{"axes", AttrKind::kInts}, {"group", AttrKind::kInt}, {"reduction", AttrKind::kText}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  MT_RETURN_IF_ERROR(CheckReduction(call));
  return Types{call.operands[0]};
}

// Every member's loss depends on every member's operand, so what goes back is summed as well (the
// loss is the sum of the members').
std::vector<Value> AllReduceGradient(Builder& b, const Op& op, Span, Span, Span cotangents) {
  if (op.attrs.Text("reduction") != "sum") {
    b.Fail(
        Unimplemented("all_reduce: only a sum has a gradient, got: " + op.attrs.Text("reduction")));
    return {Value()};
  }
  return {b.Append1("all_reduce", {cotangents[0]}, op.attrs)};
}

// Each member gets back the sum of what all members' losses say about its own part.
std::vector<Value> AllGatherGradient(Builder& b, const Op& op, Span, Span, Span cotangents) {
  return {b.Append1("reduce_scatter", {cotangents[0]},
                    {{"axes", op.attrs.Ints("axes")},
                     {"group", op.attrs.Int("group", 1)},
                     {"dim", op.attrs.Int("dim")},
                     {"reduction", std::string("sum")}})};
}

Result<Types> InferAllGather(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                             {"group", AttrKind::kInt},
                                             {"dim", AttrKind::kInt},
                                             {"size", AttrKind::kInt}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  const int64_t dim = call.attrs.Int("dim");
  TensorType type = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAxis(dim, type.rank()));
  MT_RETURN_IF_ERROR(CheckChunk(call, dim));
  type.dims[dim] = call.attrs.Int("size");
  MT_RETURN_IF_ERROR(CheckSize(type.dims));
  return Types{std::move(type)};
}

Result<Types> InferReduceScatter(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                             {"group", AttrKind::kInt},
                                             {"dim", AttrKind::kInt},
                                             {"reduction", AttrKind::kText}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  MT_RETURN_IF_ERROR(CheckReduction(call));
  const int64_t dim = call.attrs.Int("dim");
  TensorType type = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAxis(dim, type.rank()));
  type.dims[dim] = Chunk(type.dims[dim], call.attrs.Int("group"));
  return Types{std::move(type)};
}

Result<Types> InferAllToAll(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                             {"group", AttrKind::kInt},
                                             {"split_dim", AttrKind::kInt},
                                             {"concat_dim", AttrKind::kInt},
                                             {"size", AttrKind::kInt}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  const int64_t split = call.attrs.Int("split_dim"), concat = call.attrs.Int("concat_dim");
  TensorType type = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAxis(split, type.rank()));
  MT_RETURN_IF_ERROR(CheckAxis(concat, type.rank()));
  if (split == concat) {
    return InvalidArgument("expected two dimensions, got: " + std::to_string(split) + " twice");
  }
  MT_RETURN_IF_ERROR(CheckChunk(call, concat));
  type.dims[split] = Chunk(type.dims[split], call.attrs.Int("group"));
  type.dims[concat] = call.attrs.Int("size");
  MT_RETURN_IF_ERROR(CheckSize(type.dims));
  return Types{std::move(type)};
}

Result<Types> InferShardSlice(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(
      call.attrs, {{"axes", AttrKind::kInts}, {"group", AttrKind::kInt}, {"dim", AttrKind::kInt}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  const int64_t dim = call.attrs.Int("dim");
  TensorType type = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAxis(dim, type.rank()));
  type.dims[dim] = Chunk(type.dims[dim], call.attrs.Int("group"));
  return Types{std::move(type)};
}

// With `group`, checks the chunk; without it the type passes.
Result<Types> InferMaskPad(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                             {"group", AttrKind::kInt, false},
                                             {"dim", AttrKind::kInt},
                                             {"size", AttrKind::kInt},
                                             {"value", AttrKind::kDouble}}));
  MT_RETURN_IF_ERROR(CheckGroup(call));
  const int64_t dim = call.attrs.Int("dim");
  MT_RETURN_IF_ERROR(CheckAxis(dim, call.operands[0].rank()));
  if (call.attrs.Has("group")) MT_RETURN_IF_ERROR(CheckChunk(call, dim));
  return Types{call.operands[0]};
}

// A block of `extent` elements of dimension `dim` for each member of the group, from `starts` on;
// what lies outside is `value`. shard_window: of the operand, which is the member's own; halo: of a
// dimension of `size` elements of which each member holds its chunk.
Result<Types> InferBlock(const OpCall& call, bool halo) {
  if (halo) {
    MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                               {"group", AttrKind::kInt},
                                               {"dim", AttrKind::kInt},
                                               {"size", AttrKind::kInt},
                                               {"starts", AttrKind::kInts},
                                               {"extent", AttrKind::kInt},
                                               {"value", AttrKind::kDouble}}));
  } else {
    MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axes", AttrKind::kInts},
                                               {"group", AttrKind::kInt},
                                               {"dim", AttrKind::kInt},
                                               {"starts", AttrKind::kInts},
                                               {"extent", AttrKind::kInt},
                                               {"value", AttrKind::kDouble}}));
  }
  MT_RETURN_IF_ERROR(CheckGroup(call));
  const int64_t dim = call.attrs.Int("dim");
  TensorType type = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAxis(dim, type.rank()));
  if (halo) MT_RETURN_IF_ERROR(CheckChunk(call, dim));
  const std::vector<int64_t> starts = call.attrs.Ints("starts");
  if (static_cast<int64_t>(starts.size()) != call.attrs.Int("group")) {
    return InvalidArgument("expected a start for each of " +
                           std::to_string(call.attrs.Int("group")) +
                           " devices, got: " + IntsText(starts));
  }
  type.dims[dim] = call.attrs.Int("extent");
  MT_RETURN_IF_ERROR(CheckSize(type.dims));
  return Types{std::move(type)};
}

// Local, but what it computes depends on the device's place in every dimension: none may be split
// again.
FactorTable PlacedTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int f = table.Add(dims[d], FactorKind::kWhole);
    table.OnOperand(0, d, f);
    table.OnResult(
        0, d,
        results[0].dims[d] == dims[d] ? f : table.Add(results[0].dims[d], FactorKind::kWhole));
  }
  return table.Take();
}

OpDef Row(std::string kind, decltype(OpDef::infer) infer) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = 1;
  row.infer = infer;
  row.factors = PlacedTable;
  return row;
}

}  // namespace

void RegisterCollectiveOps(Registry& registry) {
  for (OpDef row : {Row("all_reduce", InferAllReduce), Row("all_gather", InferAllGather),
                    Row("reduce_scatter", InferReduceScatter), Row("all_to_all", InferAllToAll),
                    Row("halo", [](const OpCall& call) { return InferBlock(call, true); })}) {
    row.collective = true;
    // The two that a program traced per replica may hold.
    if (row.kind == "all_reduce") row.gradient = AllReduceGradient;
    if (row.kind == "all_gather") row.gradient = AllGatherGradient;
    registry.Add(std::move(row));
  }
  // Between no devices, but they read the own device's place.
  for (OpDef row :
       {Row("shard_slice", InferShardSlice), Row("mask_pad", InferMaskPad),
        Row("shard_window", [](const OpCall& call) { return InferBlock(call, false); })}) {
    row.index_dependent = true;
    registry.Add(std::move(row));
  }
}

}  // namespace meshtrain::program
