// Reductions over some dimensions.
#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// --- reduce_* {axes, keep_dims}

std::vector<bool> Reduced(const Attrs& attrs, size_t rank) {
  std::vector<bool> reduced(rank, false);
  for (const int64_t axis : attrs.Ints("axes")) reduced[axis] = true;
  return reduced;
}

Result<Types> InferReduce(const OpCall& call) {
  MT_RETURN_IF_ERROR(
      CheckAttrs(call.attrs, {{"axes", AttrKind::kInts}, {"keep_dims", AttrKind::kBool, false}}));
  const TensorType& a = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAccepts(a, Accepts::kNumber));
  const std::vector<int64_t> axes = call.attrs.Ints("axes");
  for (const int64_t axis : axes) MT_RETURN_IF_ERROR(CheckAxis(axis, a.rank()));
  if (std::set<int64_t>(axes.begin(), axes.end()).size() != axes.size()) {
    return InvalidArgument("expected each axis once, got: " + IntsText(axes));
  }
  const std::vector<bool> reduced = Reduced(call.attrs, a.dims.size());
  Dims dims;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    if (!reduced[d]) {
      dims.push_back(a.dims[d]);
    } else if (call.attrs.Bool("keep_dims")) {
      dims.push_back(1);
    }
  }
  return Types{{a.dtype, std::move(dims)}};
}

template <FactorKind kKind>
FactorTable ReduceTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  const std::vector<bool> reduced = Reduced(call.attrs, dims.size());
  const bool keep = call.attrs.Bool("keep_dims");
  size_t at = 0;  // in the result
  for (size_t d = 0; d < dims.size(); ++d) {
    const int f = table.Add(dims[d], reduced[d] ? kKind : FactorKind::kMap);
    table.OnOperand(0, d, f);
    if (!reduced[d]) table.OnResult(0, at, f);
    if (!reduced[d] || keep) ++at;
  }
  return table.Take();
}

// The dimensions of `a` with those reduced by `op` set to 1.
Dims KeptDims(const Op& op, const Value& a) {
  Dims dims = a.dims();
  for (const int64_t axis : op.attrs.Ints("axes")) dims[axis] = 1;
  return dims;
}

std::vector<Value> ReduceSumGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  const Dims kept = KeptDims(op, operands[0]);
  Value g = cotangents[0];
  const Dims have = g.dims();
  // Broadcasting adds leading dimensions by itself.
  const bool aligned = std::equal(have.rbegin(), have.rend(), kept.rbegin());
  if (!aligned) g = Reshape(g, kept);
  return {BroadcastTo(g, operands[0].dims())};
}

// The elements that equal the result share its cotangent evenly, as TensorFlow has it.
std::vector<Value> ExtremeGradient(Builder&, const Op& op, Span operands, Span results,
                                   Span cotangents) {
  const Value x = operands[0];
  const Dims kept = KeptDims(op, x);
  const Value chosen = Cast(Equal(x, Reshape(results[0], kept)), x.dtype());
  const Value count =
      Record("reduce_sum", {chosen}, {{"axes", op.attrs.Ints("axes")}, {"keep_dims", true}});
  return {chosen * (Reshape(cotangents[0], kept) / count)};
}

// --- argmax {axis}

Result<Types> InferArgMax(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"axis", AttrKind::kInt}}));
  const TensorType& a = call.operands[0];
  MT_RETURN_IF_ERROR(CheckAccepts(a, Accepts::kNumber));
  const int64_t axis = call.attrs.Int("axis");
  MT_RETURN_IF_ERROR(CheckAxis(axis, a.rank()));
  if (a.dims[axis] == 0) {
    return InvalidArgument("expected at least one element along the axis, got: " + a.ToString());
  }
  Dims dims = a.dims;
  dims.erase(dims.begin() + axis);
  return Types{{DType::kI64, std::move(dims)}};
}

FactorTable ArgMaxTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  const auto axis = static_cast<size_t>(call.attrs.Int("axis"));
  for (size_t d = 0; d < dims.size(); ++d) {
    const int f = table.Add(dims[d], d == axis ? FactorKind::kWhole : FactorKind::kMap);
    table.OnOperand(0, d, f);
    if (d != axis) table.OnResult(0, d < axis ? d : d - 1, f);
  }
  return table.Take();
}

// The first of those that equal `extreme`, the axis' largest or least, or the first NaN. By
// reductions, so that the axis may be split.
Value FirstOf(Value a, Value extreme, int64_t axis) {
  Value chosen = Equal(a, extreme);
  if (mesh::IsFloat(a.dtype())) chosen = LogicalOr(chosen, NotEqual(a, a));
  Dims dims(a.dims().size(), 1);
  const int64_t n = a.dims()[axis];
  dims[axis] = n;
  const Value index = Iota(dims, axis, DType::kI64);
  return ReduceMin(Select(chosen, index, static_cast<double>(n)), {axis});
}

std::vector<Value> ExpandArgMax(Builder&, const Op& op, Span operands) {
  const int64_t axis = op.attrs.Int("axis");
  return {FirstOf(operands[0], ReduceMax(operands[0], {axis}, true), axis)};
}

// --- count_beyond {limit}: f32[], how many elements are not within [-limit, limit]; NaN is not

Result<Types> InferCountBeyond(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"limit", AttrKind::kDouble}}));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], Accepts::kFloat));
  if (const double limit = call.attrs.Double("limit"); !(limit >= 0) || std::isinf(limit)) {
    return InvalidArgument("expected a finite limit of at least 0, got: " + AttrText(limit));
  }
  return Types{{DType::kF32, {}}};
}

FactorTable CountBeyondTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    table.OnOperand(0, d, table.Add(dims[d], FactorKind::kSum));
  }
  return table.Take();
}

OpDef Row(std::string kind, decltype(OpDef::infer) infer, decltype(OpDef::factors) factors,
          std::vector<Linearity> linearity, decltype(OpDef::gradient) gradient) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = 1;
  row.infer = infer;
  row.factors = factors;
  row.linearity = std::move(linearity);
  row.gradient = gradient;
  row.cost = CostPerElement<1>;
  return row;
}

// From the start, in order; none: all.
std::vector<int64_t> AllAxes(const Operand& a, std::vector<int64_t> axes) {
  const int rank = TypeOf(a).rank();
  if (axes.empty()) {
    for (int d = 0; d < rank; ++d) axes.push_back(d);
  }
  for (int64_t& axis : axes) axis = FromStart(axis, rank);
  std::sort(axes.begin(), axes.end());
  return axes;
}

Value Reduce(std::string_view kind, const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  return Record(kind, {a}, {{"axes", AllAxes(a, std::move(axes))}, {"keep_dims", keep_dims}});
}

}  // namespace

void RegisterReduceOps(Registry& registry) {
  registry.Add(Row("reduce_sum", InferReduce, ReduceTable<FactorKind::kSum>, {Linearity::kAlone},
                   ReduceSumGradient));
  registry.Add(Row("reduce_max", InferReduce, ReduceTable<FactorKind::kMax>, {}, ExtremeGradient));
  registry.Add(Row("reduce_min", InferReduce, ReduceTable<FactorKind::kMin>, {}, ExtremeGradient));
  OpDef argmax = Row("argmax", InferArgMax, ArgMaxTable, {}, nullptr);
  argmax.expand = ExpandArgMax;
  registry.Add(std::move(argmax));
  registry.Add(Row("count_beyond", InferCountBeyond, CountBeyondTable, {}, nullptr));
}

Value ReduceSum(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  return Reduce("reduce_sum", a, std::move(axes), keep_dims);
}
Value ReduceMax(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  return Reduce("reduce_max", a, std::move(axes), keep_dims);
}
Value ReduceMin(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  return Reduce("reduce_min", a, std::move(axes), keep_dims);
}

Value ReduceMean(const Operand& a, std::vector<int64_t> axes, bool keep_dims) {
  const TensorType type = TypeOf(a);
  // A sum may be beyond what 16 bits hold, where the mean is not.
  if (mesh::IsHalf(type.dtype)) {
    const Operand wide(Cast(a, DType::kF32), a.where());
    return Cast(Operand(ReduceMean(wide, std::move(axes), keep_dims), a.where()), type.dtype);
  }
  const Value sum = ReduceSum(a, axes, keep_dims);
  if (!sum.builder()->status().ok()) return sum;
  if (!mesh::IsFloat(type.dtype)) {
    sum.builder()->Fail(CheckAccepts(type, Accepts::kFloat).At("reduce_mean"), a.where());
    return sum;
  }
  // Counted here, on the whole tensor: a shard holds fewer.
  int64_t count = 1;
  for (const int64_t axis : AllAxes(a, std::move(axes))) count *= type.dims[axis];
  return Mul(Operand(sum, a.where()), Operand(1.0 / static_cast<double>(count), a.where()));
}

Value CountBeyond(const Operand& a, double limit) {
  return Record("count_beyond", {a}, {{"limit", limit}});
}

Value ArgMax(const Operand& a, int64_t axis) {
  return Record("argmax", {a}, {{"axis", FromStart(axis, TypeOf(a).rank())}});
}

Value ArgMin(const Operand& a, int64_t axis) {
  const TensorType type = TypeOf(a);
  const int64_t at = FromStart(axis, type.rank());
  const Value least = ReduceMin(a, {at}, true);
  if (!least.builder()->status().ok()) return least;
  if (type.dims[at] == 0) {
    least.builder()->Fail(
        InvalidArgument("argmin: expected at least one element along the axis, got: " +
                        type.ToString()),
        a.where());
    return least;
  }
  return FirstOf(ValueOf(a), least, at);
}

}  // namespace meshtrain::program
