// Element-wise ops: result element i of operand elements i, after broadcasting.
#include <cmath>
#include <numbers>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// --- types

template <Accepts kAccepts, bool kCompares = false>
Result<Types> InferElementwise(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  MT_RETURN_IF_ERROR(CheckOneDType(call.operands));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], kAccepts));
  MT_ASSIGN_OR_RETURN(Dims dims, BroadcastDims(call.operands));
  return Types{{kCompares ? DType::kBool : call.operands[0].dtype, std::move(dims)}};
}

Result<Types> InferGelu(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"approximate", AttrKind::kBool, false}}));
  MT_RETURN_IF_ERROR(CheckAccepts(call.operands[0], Accepts::kFloat));
  return Types{call.operands[0]};
}

Result<Types> InferSelect(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {}));
  if (call.operands[0].dtype != DType::kBool) {
    return InvalidArgument("expected a condition of bool, got: " + call.operands[0].ToString());
  }
  MT_RETURN_IF_ERROR(CheckOneDType(call.operands.subspan(1)));
  MT_ASSIGN_OR_RETURN(Dims dims, BroadcastDims(call.operands));
  return Types{{call.operands[1].dtype, std::move(dims)}};
}

Result<Types> InferCast(const OpCall& call) {
  MT_RETURN_IF_ERROR(CheckAttrs(call.attrs, {{"dtype", AttrKind::kText}}));
  MT_ASSIGN_OR_RETURN(const DType dtype, DTypeAttr(call.attrs));
  return Types{{dtype, call.operands[0].dims}};
}

// --- gradients

// TensorFlow's rule of ties: all of it goes to the first operand.
template <auto kFirstWins>
Pair ExtremeGradient(Value a, Value b, Value, Value g) {
  const Value first = kFirstWins(a, b);
  return {Select(first, g, 0.0), Select(first, 0.0, g)};
}

// d(a^b)/db = a^b log a, taken as 0 where a <= 0 (as TensorFlow does); the logarithm of 1 there
// keeps it finite.
Pair PowGradient(Value a, Value b, Value y, Value g) {
  const Value positive = Greater(a, 0.0);
  return {g * b * Pow(a, b - 1.0), g * y * Log(Select(positive, a, 1.0))};
}

std::vector<Value> SelectGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  const Value g = cotangents[0];
  return {Value(), SumTo(Select(operands[0], g, 0.0), operands[1].dims()),
          SumTo(Select(operands[0], 0.0, g), operands[2].dims())};
}

std::vector<Value> CastGradient(Builder&, const Op&, Span operands, Span, Span cotangents) {
  if (!mesh::IsFloat(operands[0].dtype())) return {Value()};
  return {Cast(cotangents[0], operands[0].dtype())};
}

// gelu(x) = x P(x), P the normal distribution or its tanh approximation
//   P(x) = (1 + tanh(c (x + 0.044715 x^3))) / 2, c = sqrt(2 / pi)     (Hendrycks and Gimpel,
//       arXiv:1606.08415)
std::vector<Value> GeluGradient(Builder&, const Op& op, Span operands, Span, Span cotangents) {
  const Value x = operands[0];
  if (op.attrs.Bool("approximate")) {
    const double c = std::sqrt(2.0 / std::numbers::pi);
    const Value square = Square(x);
    const Value t = Tanh(c * (x + 0.044715 * (x * square)));
    const Value slope = c * (1.0 + (3 * 0.044715) * square);
    return {cotangents[0] * (0.5 * (1.0 + t) + 0.5 * (x * ((1.0 - Square(t)) * slope)))};
  }
  const Value p = 0.5 * (1.0 + Erf(x * (1.0 / std::numbers::sqrt2)));
  const Value density = Exp(-0.5 * Square(x)) * (1.0 / std::sqrt(2.0 * std::numbers::pi));
  return {cotangents[0] * (p + x * density)};
}

// --- rows

OpDef Row(std::string kind, int operands, decltype(OpDef::infer) infer,
          std::vector<Linearity> linearity, decltype(OpDef::gradient) gradient,
          decltype(OpDef::cost) cost = CostPerElement<1>) {
  OpDef row;
  row.kind = std::move(kind);
  row.min_operands = row.max_operands = operands;
  row.infer = infer;
  row.factors = BroadcastTable;
  row.linearity = std::move(linearity);
  row.elementwise = true;
  row.gradient = gradient;
  row.cost = cost;
  return row;
}

void RegisterArithmetic(Registry& registry) {
  constexpr auto kInfer = InferElementwise<Accepts::kNumber>;
  constexpr auto kInferFloat = InferElementwise<Accepts::kFloat>;
  using enum Linearity;
  registry.Add(Row("add", 2, kInfer, {kJoint}, BinaryGradient<[](Value, Value, Value, Value g) {
                     return Pair{g, g};
                   }>));
  registry.Add(Row("sub", 2, kInfer, {kJoint}, BinaryGradient<[](Value, Value, Value, Value g) {
                     return Pair{g, -g};
                   }>));
  registry.Add(Row("mul", 2, kInfer, {kAlone}, BinaryGradient<[](Value a, Value b, Value, Value g) {
                     return Pair{g * b, g * a};
                   }>));
  registry.Add(Row("div", 2, kInferFloat, {kAlone, kNone},
                   BinaryGradient<[](Value, Value b, Value y, Value g) {
                     const Value per_b = g / b;
                     return Pair{per_b, -(per_b * y)};
                   }>));
  registry.Add(Row("pow", 2, kInferFloat, {}, BinaryGradient<PowGradient>, CostPerElement<20>));
  registry.Add(Row("maximum", 2, kInfer, {}, BinaryGradient<ExtremeGradient<GreaterEqual>>));
  registry.Add(Row("minimum", 2, kInfer, {}, BinaryGradient<ExtremeGradient<LessEqual>>));
}

void RegisterUnary(Registry& registry) {
  constexpr auto kInfer = InferElementwise<Accepts::kNumber>;
  constexpr auto kInferFloat = InferElementwise<Accepts::kFloat>;
  using enum Linearity;
  registry.Add(
      Row("neg", 1, kInfer, {kAlone}, UnaryGradient<[](Value, Value, Value g) { return -g; }>));
  registry.Add(Row("abs", 1, kInfer, {},
                   UnaryGradient<[](Value x, Value, Value g) { return g * Sign(x); }>));
  registry.Add(Row("sign", 1, kInfer, {}, nullptr));
  registry.Add(Row("floor", 1, kInferFloat, {}, nullptr));
  registry.Add(Row("square", 1, kInfer, {},
                   UnaryGradient<[](Value x, Value, Value g) { return g * (2.0 * x); }>));
  registry.Add(Row("sqrt", 1, kInferFloat, {},
                   UnaryGradient<[](Value, Value y, Value g) { return 0.5 * g / y; }>,
                   CostPerElement<4>));
  registry.Add(
      Row("rsqrt", 1, kInferFloat, {},
          UnaryGradient<[](Value, Value y, Value g) { return (-0.5 * g) * (y * Square(y)); }>,
          CostPerElement<4>));
  registry.Add(Row("exp", 1, kInferFloat, {},
                   UnaryGradient<[](Value, Value y, Value g) { return g * y; }>,
                   CostPerElement<10>));
  registry.Add(Row("log", 1, kInferFloat, {},
                   UnaryGradient<[](Value x, Value, Value g) { return g / x; }>,
                   CostPerElement<10>));
  registry.Add(Row("log1p", 1, kInferFloat, {},
                   UnaryGradient<[](Value x, Value, Value g) { return g / (1.0 + x); }>,
                   CostPerElement<10>));
  registry.Add(Row("erf", 1, kInferFloat, {}, UnaryGradient<[](Value x, Value, Value g) {
                     return g * ((2.0 * std::numbers::inv_sqrtpi) * Exp(-Square(x)));
                   }>,
                   CostPerElement<10>));
  registry.Add(Row("tanh", 1, kInferFloat, {},
                   UnaryGradient<[](Value, Value y, Value g) { return g * (1.0 - Square(y)); }>,
                   CostPerElement<10>));
  registry.Add(Row("sigmoid", 1, kInferFloat, {},
                   UnaryGradient<[](Value, Value y, Value g) { return g * (y * (1.0 - y)); }>,
                   CostPerElement<10>));
  // 0 at 0, as TensorFlow has it. By the result, so that the operand need not be kept.
  registry.Add(Row(
      "relu", 1, kInferFloat, {},
      UnaryGradient<[](Value, Value y, Value g) { return g * Cast(Greater(y, 0.0), y.dtype()); }>));
  registry.Add(Row("gelu", 1, InferGelu, {}, GeluGradient, CostPerElement<20>));
  // From float to float it is linear too, but a row's list cannot tell types apart: a pending sum
  // is reduced first.
  registry.Add(Row("cast", 1, InferCast, {}, CastGradient));
  OpDef stop = Row("stop_gradient", 1, InferElementwise<Accepts::kAny>, {kAlone}, nullptr);
  stop.moves_data = true;
  registry.Add(std::move(stop));
}

void RegisterLogic(Registry& registry) {
  constexpr auto kInferAny = InferElementwise<Accepts::kAny, true>;
  constexpr auto kInferNumber = InferElementwise<Accepts::kNumber, true>;
  constexpr auto kInferBool = InferElementwise<Accepts::kBool, true>;
  for (const char* kind : {"equal", "not_equal"}) {
    registry.Add(Row(kind, 2, kInferAny, {}, nullptr));
  }
  for (const char* kind : {"less", "less_equal", "greater", "greater_equal"}) {
    registry.Add(Row(kind, 2, kInferNumber, {}, nullptr));
  }
  for (const char* kind : {"logical_and", "logical_or"}) {
    registry.Add(Row(kind, 2, kInferBool, {}, nullptr));
  }
  registry.Add(Row("logical_not", 1, kInferBool, {}, nullptr));
  registry.Add(
      Row("select", 3, InferSelect, {Linearity::kNone, Linearity::kJoint}, SelectGradient));
}

}  // namespace

void RegisterElementwiseOps(Registry& registry) {
  RegisterArithmetic(registry);
  RegisterUnary(registry);
  RegisterLogic(registry);
}

Value operator+(const Operand& a, const Operand& b) { return Add(a, b); }
Value operator-(const Operand& a, const Operand& b) { return Sub(a, b); }
Value operator*(const Operand& a, const Operand& b) { return Mul(a, b); }
Value operator/(const Operand& a, const Operand& b) { return Div(a, b); }
Value operator-(const Operand& a) { return Neg(a); }

Value Add(const Operand& a, const Operand& b) { return Record("add", {a, b}); }
Value Sub(const Operand& a, const Operand& b) { return Record("sub", {a, b}); }
Value Mul(const Operand& a, const Operand& b) { return Record("mul", {a, b}); }
Value Div(const Operand& a, const Operand& b) { return Record("div", {a, b}); }
Value Pow(const Operand& a, const Operand& b) { return Record("pow", {a, b}); }
Value Maximum(const Operand& a, const Operand& b) { return Record("maximum", {a, b}); }
Value Minimum(const Operand& a, const Operand& b) { return Record("minimum", {a, b}); }
Value Equal(const Operand& a, const Operand& b) { return Record("equal", {a, b}); }
Value NotEqual(const Operand& a, const Operand& b) { return Record("not_equal", {a, b}); }
Value Less(const Operand& a, const Operand& b) { return Record("less", {a, b}); }
Value LessEqual(const Operand& a, const Operand& b) { return Record("less_equal", {a, b}); }
Value Greater(const Operand& a, const Operand& b) { return Record("greater", {a, b}); }
Value GreaterEqual(const Operand& a, const Operand& b) { return Record("greater_equal", {a, b}); }
Value LogicalAnd(const Operand& a, const Operand& b) { return Record("logical_and", {a, b}); }
Value LogicalOr(const Operand& a, const Operand& b) { return Record("logical_or", {a, b}); }

Value Neg(const Operand& a) { return Record("neg", {a}); }
Value Abs(const Operand& a) { return Record("abs", {a}); }
Value Sign(const Operand& a) { return Record("sign", {a}); }
Value Floor(const Operand& a) { return Record("floor", {a}); }
Value Square(const Operand& a) { return Record("square", {a}); }
Value Sqrt(const Operand& a) { return Record("sqrt", {a}); }
Value Rsqrt(const Operand& a) { return Record("rsqrt", {a}); }
Value Exp(const Operand& a) { return Record("exp", {a}); }
Value Log(const Operand& a) { return Record("log", {a}); }
Value Log1p(const Operand& a) { return Record("log1p", {a}); }
Value Erf(const Operand& a) { return Record("erf", {a}); }
Value Tanh(const Operand& a) { return Record("tanh", {a}); }
Value Sigmoid(const Operand& a) { return Record("sigmoid", {a}); }
Value Relu(const Operand& a) { return Record("relu", {a}); }
Value LogicalNot(const Operand& a) { return Record("logical_not", {a}); }
Value StopGradient(const Operand& a) { return Record("stop_gradient", {a}); }

Value Gelu(const Operand& a, bool approximate) {
  return Record("gelu", {a}, {{"approximate", approximate}});
}
Value Cast(const Operand& a, DType dtype) {
  return Record("cast", {a}, {{"dtype", DTypeText(dtype)}});
}

Value Select(const Operand& condition, const Operand& a, const Operand& b) {
  return Record("select", {condition, a, b});
}

Value ClipByValue(const Operand& a, const Operand& low, const Operand& high) {
  return Minimum(Operand(Maximum(a, low), a.where()), high);
}

}  // namespace meshtrain::program
