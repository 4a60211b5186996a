// Classes and labels: softmax, cross-entropies, one-hot.
#include <cmath>
#include <limits>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

Status CheckLogits(const TensorType& logits) {
  MT_RETURN_IF_ERROR(CheckAccepts(logits, Accepts::kFloat));
  if (logits.rank() >= 1 && logits.dims.back() >= 1) return OkStatus();
  return InvalidArgument("expected a last dimension of at least 1 class, got: " +
                         logits.ToString());
}

Status CheckLabels(const TensorType& labels) {
  if (labels.dtype == DType::kI32 || labels.dtype == DType::kI64) return OkStatus();
  return InvalidArgument("expected labels of i32 or i64, got: " + labels.ToString());
}

Dims WithoutLast(Dims dims) {
  dims.pop_back();
  return dims;
}

// The classes are needed whole, everything before them moves freely.
FactorTable ClassesTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    const bool is_class = d + 1 == dims.size();
    const int f = table.Add(dims[d], is_class ? FactorKind::kWhole : FactorKind::kMap);
    for (size_t i = 0; i < call.operands.size(); ++i) {
      if (d < call.operands[i].dims.size()) table.OnOperand(i, d, f);
    }
    if (d < results[0].dims.size()) table.OnResult(0, d, f);
  }
  return table.Take();
}

Value LastOnes(Value v) { return ExpandDims(v, -1); }
Value SumLast(Value v) { return ReduceSum(v, {-1}, true); }

// --- softmax, log_softmax

Result<Types> InferSoftmax(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  MT_RETURN_IF_ERROR(CheckLogits(call.operands[0]));
  return Types{call.operands[0]};
}

// --- sparse_softmax_cross_entropy (logits, labels), and its gradient (logits, labels, dloss) ->
// dlogits
//   loss_i = log sum_c exp(x_ic) - x_i,label      dx_ic = (softmax(x_i)_c - [c == label_i]) dloss_i

Status CheckSparse(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  const TensorType& logits = call.operands[0];
  const TensorType& labels = call.operands[1];
  MT_RETURN_IF_ERROR(CheckLogits(logits));
  MT_RETURN_IF_ERROR(CheckLabels(labels));
  if (labels.dims != WithoutLast(logits.dims)) {
    return InvalidArgument(
        "expected labels of the logits' shape without its last dimension, got: " +
        TypesText(call.operands));
  }
  return OkStatus();
}

Result<Types> InferSparse(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckSparse(call));
  return Types{{call.operands[0].dtype, WithoutLast(call.operands[0].dims)}};
}

Result<Types> InferSparseGrad(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckSparse(call));
  const TensorType& logits = call.operands[0];
  if (call.operands[2] != TensorType{logits.dtype, WithoutLast(logits.dims)}) {
    return InvalidArgument("expected a cotangent of the loss's type, got: " +
                           TypesText(call.operands));
  }
  return Types{logits};
}

std::vector<Value> SparseGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  return {Record("sparse_softmax_cross_entropy_grad", {operands[0], operands[1], cotangents[0]}),
          Value()};
}

// Of (softmax(x) - onehot) dloss, which is linear in dloss.
std::vector<Value> SparseGradGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  const Value logits = operands[0], labels = operands[1], dloss = operands[2], g = cotangents[0];
  const Value p = Softmax(logits);
  const Value along = SumLast(g * p);
  const Value hot = OneHot(labels, logits.dims().back(), logits.dtype());
  return {LastOnes(dloss) * (p * (g - along)), Value(), ReduceSum(g * (p - hot), {-1})};
}

// --- softmax_cross_entropy (logits, labels of the same shape): -sum_c labels_c
// log_softmax(logits)_c

Result<Types> InferDense(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  MT_RETURN_IF_ERROR(CheckLogits(call.operands[0]));
  if (call.operands[0] != call.operands[1]) {
    return InvalidArgument("expected logits and labels of one type, got: " +
                           TypesText(call.operands));
  }
  return Types{{call.operands[0].dtype, WithoutLast(call.operands[0].dims)}};
}

std::vector<Value> DenseGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  const Value logits = operands[0], labels = operands[1], g = LastOnes(cotangents[0]);
  return {g * (Softmax(logits) * SumLast(labels) - labels), -(g * LogSoftmax(logits))};
}

// --- sigmoid_cross_entropy (logits x, labels z): max(x, 0) - x z + log(1 + exp(-|x|))

Result<Types> InferSigmoid(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], Accepts::kFloat));
  if (call.operands[0] != call.operands[1]) {
    return InvalidArgument("expected logits and labels of one type, got: " +
                           TypesText(call.operands));
  }
  return Types{call.operands[0]};
}

std::vector<Value> SigmoidGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  const Value x = operands[0], z = operands[1], g = cotangents[0];
  return {g * (Sigmoid(x) - z), -(g * x)};
}

// --- one_hot {depth, dtype}: a label outside gives a row of zeros

Result<Types> InferOneHot(const OpCall& call) {
  MT_RETURN_IF_ERROR(
      CheckAttrs(call.attrs, {{"depth", AttrKind::kInt}, {"dtype", AttrKind::kText, false}}));
  MT_RETURN_IF_ERROR(CheckLabels(call.operands[0]));
  MT_ASSIGN_OR_RETURN(const DType dtype, DTypeAttr(call.attrs));
  const int64_t depth = call.attrs.Int("depth");
  if (depth < 1) {
    return InvalidArgument("expected a depth of at least 1, got: " + std::to_string(depth));
  }
  Dims dims = call.operands[0].dims;
  dims.push_back(depth);
  MT_RETURN_IF_ERROR(CheckSize(dims));
  return Types{{dtype, std::move(dims)}};
}

FactorTable OneHotTable(const OpCall& call, std::span<const TensorType> results) {
  TableMaker table(call, results);
  const Dims& dims = call.operands[0].dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int f = table.Add(dims[d], FactorKind::kMap);
    table.OnOperand(0, d, f);
    table.OnResult(0, d, f);
  }
  table.OnResult(0, dims.size(), table.Add(call.attrs.Int("depth"), FactorKind::kWhole));
  return table.Take();
}

// --- the same where the classes are split: the largest and the sum of the exponentials of a row
// are a number for each row, which the devices reduce among themselves

// x less the row's largest, its exponentials, and the sum of them.
struct Shifted {
  Value x, exp, sum;
  explicit Shifted(Value logits) {
    x = logits - ReduceMax(logits, {-1}, true);
    exp = Exp(x);
    sum = SumLast(exp);
  }
};
Value Hot(Value labels, int64_t classes) {
  return Equal(Iota({classes}, 0, labels.dtype()), LastOnes(labels));
}
// `v` where the label, of a row or a class of it, is a class.
Value WhereInside(Value v, Value labels, int64_t classes) {
  const Value inside =
      LogicalAnd(GreaterEqual(labels, 0.0), Less(labels, static_cast<double>(classes)));
  return Select(inside, v, std::numeric_limits<double>::quiet_NaN());
}

std::vector<Value> ExpandSoftmax(Builder&, const Op&, Span operands) {
  const Shifted s(operands[0]);
  return {s.exp / s.sum};
}
std::vector<Value> ExpandLogSoftmax(Builder&, const Op&, Span operands) {
  const Shifted s(operands[0]);
  return {s.x - Log(s.sum)};
}
std::vector<Value> ExpandSparse(Builder&, const Op&, Span operands) {
  const Value logits = operands[0], labels = operands[1];
  const int64_t classes = logits.dims().back();
  const Shifted s(logits);
  // Chosen, not multiplied: a class of -infinity has no part in it.
  const Value at_label = ReduceSum(Select(Hot(labels, classes), s.x, 0.0), {-1});
  return {WhereInside(Log(Squeeze(s.sum, {-1})) - at_label, labels, classes)};
}
std::vector<Value> ExpandSparseGrad(Builder&, const Op&, Span operands) {
  const Value logits = operands[0], labels = operands[1], dloss = operands[2];
  const int64_t classes = logits.dims().back();
  const Shifted s(logits);
  const Value off = s.exp / s.sum - Cast(Hot(labels, classes), logits.dtype());
  return {WhereInside(off * LastOnes(dloss), LastOnes(labels), classes)};
}
std::vector<Value> ExpandDense(Builder&, const Op&, Span operands) {
  const Shifted s(operands[0]);
  return {-ReduceSum((s.x - Log(s.sum)) * operands[1], {-1})};
}
std::vector<Value> ExpandOneHot(Builder&, const Op& op, Span operands) {
  return {Cast(Hot(operands[0], op.attrs.Int("depth")), *DTypeAttr(op.attrs))};
}

OpDef Row(std::string kind, int operands, decltype(OpDef::infer) infer,
          std::vector<Linearity> linearity, decltype(OpDef::gradient) gradient,
          decltype(OpDef::expand) expand) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = operands;
  row.infer = infer;
  row.factors = ClassesTable;
  row.linearity = std::move(linearity);
  row.gradient = gradient;
  row.expand = expand;
  row.cost = CostPerElement<15>;
  return row;
}

}  // namespace

void RegisterIndexOps(Registry& registry) {
  using enum Linearity;
  registry.Add(Row("softmax", 1, InferSoftmax, {},
                   UnaryGradient<[](Value, Value y, Value g) { return y * (g - SumLast(g * y)); }>,
                   ExpandSoftmax));
  registry.Add(Row("log_softmax", 1, InferSoftmax, {},
                   UnaryGradient<[](Value, Value y, Value g) { return g - Exp(y) * SumLast(g); }>,
                   ExpandLogSoftmax));
  registry.Add(
      Row("sparse_softmax_cross_entropy", 2, InferSparse, {}, SparseGradient, ExpandSparse));
  registry.Add(Row("sparse_softmax_cross_entropy_grad", 3, InferSparseGrad, {kNone, kNone, kAlone},
                   SparseGradGradient, ExpandSparseGrad));
  registry.Add(
      Row("softmax_cross_entropy", 2, InferDense, {kNone, kAlone}, DenseGradient, ExpandDense));
  OpDef sigmoid = Row("sigmoid_cross_entropy", 2, InferSigmoid, {}, SigmoidGradient, nullptr);
  sigmoid.factors = BroadcastTable;
  sigmoid.elementwise = true;
  sigmoid.formula = "max(x, 0) - x z + log(1 + e^-abs x)";
  registry.Add(std::move(sigmoid));
  OpDef one_hot = Row("one_hot", 1, InferOneHot, {}, nullptr, ExpandOneHot);
  one_hot.factors = OneHotTable;
  one_hot.cost = nullptr;
  registry.Add(std::move(one_hot));
}

Value Softmax(const Operand& logits) { return Record("softmax", {logits}); }
Value LogSoftmax(const Operand& logits) { return Record("log_softmax", {logits}); }

Value SparseSoftmaxCrossEntropy(const Operand& logits, const Operand& labels) {
  return Record("sparse_softmax_cross_entropy", {logits, labels});
}
Value SoftmaxCrossEntropy(const Operand& logits, const Operand& labels) {
  return Record("softmax_cross_entropy", {logits, labels});
}
Value SigmoidCrossEntropy(const Operand& logits, const Operand& labels) {
  return Record("sigmoid_cross_entropy", {logits, labels});
}
Value OneHot(const Operand& labels, int64_t depth, DType dtype) {
  return Record("one_hot", {labels}, {{"depth", depth}, {"dtype", DTypeText(dtype)}});
}

}  // namespace meshtrain::program
