// Ops that make values out of nothing: constants, indices, random numbers; and what records state.
#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

Result<TensorType> TypeAttrs(const Attrs& attrs) {
  MT_ASSIGN_OR_RETURN(const DType dtype, DTypeAttr(attrs));
  MT_ASSIGN_OR_RETURN(Dims dims, DimsAttr(attrs));
  return TensorType{dtype, std::move(dims)};
}

// --- constant {value | values, dims, dtype}: one number everywhere, or one number per element in
// row-major order

Result<Types> InferConstant(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"value", AttrKind::kDouble, false},
                                             {"values", AttrKind::kDoubles, false},
                                             {"dims", AttrKind::kInts, false},
                                             {"dtype", AttrKind::kText, false}}));
  MT_ASSIGN_OR_RETURN(TensorType type, TypeAttrs(call.attrs));
  if (call.attrs.Has("value") == call.attrs.Has("values")) {
    return InvalidArgument(std::string("expected either `value` or `values`, got: ") +
                           (call.attrs.Has("value") ? "both" : "neither"));
  }
  if (call.attrs.Has("value")) {
    MT_RETURN_IF_ERROR(CheckNumber(call.attrs.Double("value"), type.dtype));
    return Types{std::move(type)};
  }
  const std::vector<double> values = call.attrs.Doubles("values");
  if (static_cast<int64_t>(values.size()) != type.num_elements()) {
    return InvalidArgument("expected " + std::to_string(type.num_elements()) + " values for " +
                           type.ToString() + ", got: " + std::to_string(values.size()));
  }
  for (const double v : values) MT_RETURN_IF_ERROR(CheckNumber(v, type.dtype));
  return Types{std::move(type)};
}

// One number may be cut; a list cannot follow its shards.
FactorTable ConstantTable(const OpCall& call, std::span<const TensorType> results) {
  return AlignedTable(call, results, call.attrs.Has("value") ? 0 : results[0].rank());
}

// --- fill {value, dims, dtype}

Result<Types> InferFill(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"value", AttrKind::kDouble},
                                             {"dims", AttrKind::kInts},
                                             {"dtype", AttrKind::kText, false}}));
  MT_ASSIGN_OR_RETURN(TensorType type, TypeAttrs(call.attrs));
  MT_RETURN_IF_ERROR(CheckNumber(call.attrs.Double("value"), type.dtype));
  return Types{std::move(type)};
}

// --- iota {dims, axis, dtype}: each element is its index along `axis`

Result<Types> InferIota(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(
      call.attrs,
      {{"dims", AttrKind::kInts}, {"axis", AttrKind::kInt}, {"dtype", AttrKind::kText, false}}));
  MT_ASSIGN_OR_RETURN(TensorType type, TypeAttrs(call.attrs));
  MT_RETURN_IF_ERROR(CheckAccepts(type, Accepts::kNumber));
  MT_RETURN_IF_ERROR(CheckAxis(call.attrs.Int("axis"), type.rank()));
  return Types{std::move(type)};
}

// --- stateless_* {dims, dtype, seed: [a, b], two parameters}: Philox 4x32-10 as TensorFlow keys
// and spreads it

Result<Types> InferRandom(const OpCall& call, std::string_view first, std::string_view second) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"dims", AttrKind::kInts},
                                             {"dtype", AttrKind::kText, false},
                                             {"seed", AttrKind::kInts},
                                             {first, AttrKind::kDouble},
                                             {second, AttrKind::kDouble}}));
  MT_ASSIGN_OR_RETURN(TensorType type, TypeAttrs(call.attrs));
  MT_RETURN_IF_ERROR(CheckAccepts(type, Accepts::kFloat));
  const std::vector<int64_t> seed = call.attrs.Ints("seed");
  if (seed.size() != 2) {
    return InvalidArgument("expected a seed of two integers, got: " + IntsText(seed));
  }
  return Types{std::move(type)};
}

Result<Types> InferUniform(const OpCall& call) { return InferRandom(call, "minval", "maxval"); }
Result<Types> InferNormal(const OpCall& call) { return InferRandom(call, "mean", "stddev"); }

// --- dropout_mask {dims, dtype, rate, seed} (step): 1 / (1 - rate) with probability 1 - rate, else
// 0

Result<Types> InferDropoutMask(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"dims", AttrKind::kInts},
                                             {"dtype", AttrKind::kText, false},
                                             {"rate", AttrKind::kDouble},
                                             {"seed", AttrKind::kInt}}));
  MT_ASSIGN_OR_RETURN(TensorType type, TypeAttrs(call.attrs));
  MT_RETURN_IF_ERROR(CheckAccepts(type, Accepts::kFloat));
  const double rate = call.attrs.Double("rate");
  if (!(rate >= 0 && rate < 1)) {
    return InvalidArgument("expected a rate in [0, 1), got: " + AttrText(rate));
  }
  if (call.operands[0] != TensorType{DType::kI64, {}}) {
    return InvalidArgument("expected a step of i64[], got: " + call.operands[0].ToString());
  }
  return Types{std::move(type)};
}

FactorTable DropoutMaskTable(const OpCall& call, std::span<const TensorType> results) {
  return AlignedTable(call, results);  // the scalar step has no dimension to align
}

OpDef Source(std::string kind, decltype(OpDef::infer) infer, decltype(OpDef::cost) cost) {
  OpDef row;
  row.kind = std::move(kind);
  row.infer = infer;
  row.factors = BroadcastTable;
  row.cost = cost;
  return row;
}

OpDef Indexed(OpDef row) {
  row.index_dependent = true;
  return row;
}

Value RecordSource(std::string_view kind, Attrs attrs, const std::source_location& where) {
  return Builder::Of({}).Append1(kind, {}, std::move(attrs), &where);
}

Value Random(std::string_view kind, Dims dims, const Seed& seed, Attrs attrs, DType dtype,
             const std::source_location& where) {
  attrs.Set("dims", std::move(dims));
  attrs.Set("dtype", DTypeText(dtype));
  attrs.Set("seed", std::vector<int64_t>(seed.begin(), seed.end()));
  return RecordSource(kind, std::move(attrs), where);
}

}  // namespace

void RegisterRandomOps(Registry& registry) {
  OpDef constant = Source("constant", InferConstant, nullptr);
  constant.factors = ConstantTable;
  registry.Add(std::move(constant));
  registry.Add(Source("fill", InferFill, nullptr));
  registry.Add(Indexed(Source("iota", InferIota, nullptr)));
  registry.Add(Indexed(Source("stateless_uniform", InferUniform, CostPerElement<15>)));
  registry.Add(Indexed(Source("stateless_normal", InferNormal, CostPerElement<40>)));
  registry.Add(Indexed(Source("stateless_truncated_normal", InferNormal, CostPerElement<50>)));
  OpDef mask = Indexed(Source("dropout_mask", InferDropoutMask, CostPerElement<15>));
  mask.min_operands = mask.max_operands = 1;
  mask.factors = DropoutMaskTable;
  mask.path_dependent = true;
  registry.Add(std::move(mask));
}

Value Fill(Dims dims, double value, DType dtype, std::source_location where) {
  return RecordSource(
      "fill", {{"dims", std::move(dims)}, {"value", value}, {"dtype", DTypeText(dtype)}}, where);
}
Value Zeros(Dims dims, DType dtype, std::source_location where) {
  return Fill(std::move(dims), 0, dtype, where);
}
Value Ones(Dims dims, DType dtype, std::source_location where) {
  return Fill(std::move(dims), 1, dtype, where);
}

Value Iota(Dims dims, int64_t axis, DType dtype, std::source_location where) {
  const int64_t from_start = FromStart(axis, static_cast<int>(dims.size()));
  return RecordSource(
      "iota", {{"dims", std::move(dims)}, {"axis", from_start}, {"dtype", DTypeText(dtype)}},
      where);
}

Value StatelessUniform(Dims dims, Seed seed, double minval, double maxval, DType dtype,
                       std::source_location where) {
  if (mesh::IsHalf(dtype)) {
    // Of as many steps as the type tells apart below 1, so that none is rounded up to `maxval`.
    const double steps = dtype == DType::kBF16 ? 0x1p8 : 0x1p11;
    const auto at = [&](Value v) { return Operand(v, where); };
    const Value step = Floor(at(Mul(
        at(StatelessUniform(std::move(dims), seed, 0, 1, DType::kF32, where)), {steps, where})));
    const Value scaled = Mul(at(step), {(maxval - minval) / steps, where});
    return Cast(at(Add(at(scaled), {minval, where})), dtype);
  }
  return Random("stateless_uniform", std::move(dims), seed,
                {{"minval", minval}, {"maxval", maxval}}, dtype, where);
}
Value StatelessNormal(Dims dims, Seed seed, double mean, double stddev, DType dtype,
                      std::source_location where) {
  return Random("stateless_normal", std::move(dims), seed, {{"mean", mean}, {"stddev", stddev}},
                dtype, where);
}
Value StatelessTruncatedNormal(Dims dims, Seed seed, double mean, double stddev, DType dtype,
                               std::source_location where) {
  return Random("stateless_truncated_normal", std::move(dims), seed,
                {{"mean", mean}, {"stddev", stddev}}, dtype, where);
}

Value Dropout(const Operand& a, double rate, int64_t seed, const Operand& step) {
  const TensorType type = TypeOf(a);
  const Operand operands[] = {a, step};
  Builder& builder = Builder::Of(operands);
  const Operand counted =
      step.is_number()
          ? Operand(builder.Constant(step.number(), DType::kI64, step.where()), step.where())
          : step;
  const Value mask = builder.Append1(
      "dropout_mask", {counted},
      {{"dims", type.dims}, {"dtype", DTypeText(type.dtype)}, {"rate", rate}, {"seed", seed}},
      &a.where());
  return Mul(a, Operand(mask, a.where()));
}

void Assign(const Variable& variable, const Operand& value) {
  const Operand operands[] = {value};
  Builder::Of(operands).Assign(variable, value);
}
void AssignAdd(const Variable& variable, const Operand& value) {
  Assign(variable, Operand(Add(Operand(variable, value.where()), value), value.where()));
}
void AssignSub(const Variable& variable, const Operand& value) {
  Assign(variable, Operand(Sub(Operand(variable, value.where()), value), value.where()));
}

}  // namespace meshtrain::program
