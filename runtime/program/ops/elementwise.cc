// Element-wise ops: result element i of operand elements i, after broadcasting. All of them are
// lines of one table; what can be said by others with the same numbers is not one of them, but a
// function that records those, which the CPU runs as one loop.
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/program/ops.h"
#include "runtime/program/ops/families.h"
#include "runtime/program/ops/support.h"

namespace meshtrain::program {
namespace {

using namespace ops;  // NOLINT: the families' own helpers

// Of a cast: its gradient, which goes back to the wider type, is summed over devices before that.
constexpr std::string_view kNarrowSums = "narrow_sums";

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
  MT_RETURN_IF_ERROR(
      CheckAttrs(call.attrs, {{"dtype", AttrKind::kText}, {kNarrowSums, AttrKind::kBool, false}}));
  MT_ASSIGN_OR_RETURN(const DType dtype, DTypeAttr(call.attrs));
  return Types{{dtype, call.operands[0].dims}};
}

// Each number of the operand's type is one of the result's.
bool KeepsFloats(const OpCall& call) {
  const DType from = call.operands[0].dtype, to = DTypeAttr(call.attrs).value();
  return mesh::IsFloat(from) && mesh::IsFloat(to) &&
         (from == to || mesh::DTypeBytes(from) < mesh::DTypeBytes(to)) &&
         !(call.attrs.Has(kNarrowSums) && call.attrs.Bool(kNarrowSums));
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

std::vector<Value> CastGradient(Builder& b, const Op& op, Span operands, Span, Span cotangents) {
  if (!mesh::IsFloat(operands[0].dtype())) return {Value()};
  if (!op.attrs.Has(kNarrowSums)) return {Cast(cotangents[0], operands[0].dtype())};
  Attrs attrs = op.attrs;
  attrs.Set("dtype", DTypeText(operands[0].dtype()));
  return {b.Append("cast", {cotangents[0]}, std::move(attrs))[0]};
}

// gelu(x) = x P(x), P the normal distribution or its tanh approximation
//   P(x) = (1 + tanh(c (x + 0.044715 x^3))) / 2, c = sqrt(2 / pi)     (Hendrycks and Gimpel,
//       arXiv:1606.08415)
//        = sigmoid(x (kGeluLinear + kGeluCubic x^2))
// In f32 also where x has 16 bits: x^2 is beyond an f16 from 256 on.
std::vector<Value> GeluGradient(Builder& builder, const Op& op, Span operands, Span results,
                                Span cotangents) {
  const Value x = operands[0];
  if (mesh::IsHalf(x.dtype())) {
    const Value wide = Cast(x, DType::kF32), g = Cast(cotangents[0], DType::kF32);
    const Value of[] = {wide}, by[] = {g};
    return {Cast(GeluGradient(builder, op, of, results, by)[0], x.dtype())};
  }
  if (op.attrs.Bool("approximate")) {
    const Value square = Square(x);
    const Value p = Sigmoid(x * (kGeluLinear + kGeluCubic * square));
    const Value slope = kGeluLinear + (3 * kGeluCubic) * square;
    return {cotangents[0] * (p + x * (p * (1.0 - p) * slope))};
  }
  const Value p = 0.5 * (1.0 + Erf(x * (1.0 / std::numbers::sqrt2)));
  const Value density = Exp(-0.5 * Square(x)) * (1.0 / std::sqrt(2.0 * std::numbers::pi));
  return {cotangents[0] * (p + x * density)};
}

// --- rows

using Infer = decltype(OpDef::infer);
using Gradient = decltype(OpDef::gradient);
using CostFn = decltype(OpDef::cost);

// The table: kind, formula, operands and types (infer), where it is linear, gradient, operations
// for an element. What the CPU does stands in device/cpu/fused/chain.cc, StableHLO in
// device/pjrt/ops/elementwise.cc, how exact a result is in tests/support/interpreter.
struct Line {
  const char* kind;
  const char* formula;
  int operands;
  Infer infer;
  std::vector<Linearity> linearity;
  Gradient gradient;
  CostFn cost = CostPerElement<1>;
  bool (*linear)(const OpCall& call) = nullptr;
};

constexpr Infer kNumbers = InferElementwise<Accepts::kNumber>;
constexpr Infer kFloats = InferElementwise<Accepts::kFloat>;
constexpr Infer kOrders = InferElementwise<Accepts::kNumber, true>;
constexpr Infer kEquals = InferElementwise<Accepts::kAny, true>;
constexpr Infer kLogic = InferElementwise<Accepts::kBool, true>;
constexpr CostFn kRoot = CostPerElement<4>;
constexpr CostFn kCurve = CostPerElement<10>;
constexpr CostFn kTwoCurves = CostPerElement<20>;

template <auto kFunction>
constexpr Gradient kOf1 = UnaryGradient<kFunction>;
template <auto kFunction>
constexpr Gradient kOf2 = BinaryGradient<kFunction>;

// Of a float; from x, the result y and the cotangent g.
using V = Value;

std::vector<Line> Lines() {
  using enum Linearity;
  return {
      // --- arithmetic
      {"add", "a + b", 2, kNumbers, {kJoint}, kOf2<[](V, V, V, V g) {
         return Pair{g, g};
       }>},
      {"sub", "a - b", 2, kNumbers, {kJoint}, kOf2<[](V, V, V, V g) {
         return Pair{g, -g};
       }>},
      {"mul", "a b", 2, kNumbers, {kAlone}, kOf2<[](V a, V b, V, V g) {
         return Pair{g * b, g * a};
       }>},
      {"div", "a / b", 2, kFloats, {kAlone, kNone}, kOf2<[](V, V b, V y, V g) {
         const V per_b = g / b;
         return Pair{per_b, -(per_b * y)};
       }>},
      {"pow", "a^b", 2, kFloats, {}, kOf2<PowGradient>, kTwoCurves},
      {"maximum", "max(a, b)", 2, kNumbers, {}, kOf2<ExtremeGradient<GreaterEqual>>},
      {"minimum", "min(a, b)", 2, kNumbers, {}, kOf2<ExtremeGradient<LessEqual>>},
      // --- of one operand
      {"neg", "-x", 1, kNumbers, {kAlone}, kOf1<[](V, V, V g) { return -g; }>},
      {"abs", "abs x", 1, kNumbers, {}, kOf1<[](V x, V, V g) { return g * Sign(x); }>},
      {"sign", "-1, 0 or 1", 1, kNumbers, {}, nullptr},
      {"floor", "the largest whole number <= x", 1, kFloats, {}, nullptr},
      {"square", "x x", 1, kNumbers, {}, kOf1<[](V x, V, V g) { return g * (2.0 * x); }>},
      {"sqrt", "x^(1/2)", 1, kFloats, {}, kOf1<[](V, V y, V g) { return 0.5 * g / y; }>, kRoot},
      {"rsqrt",
       "x^(-1/2)",
       1,
       kFloats,
       {},
       kOf1<[](V, V y, V g) { return (-0.5 * g) * (y * Square(y)); }>,
       kRoot},
      {"exp", "e^x", 1, kFloats, {}, kOf1<[](V, V y, V g) { return g * y; }>, kCurve},
      {"expm1", "e^x - 1", 1, kFloats, {}, kOf1<[](V x, V, V g) { return g * Exp(x); }>, kCurve},
      {"log", "log x", 1, kFloats, {}, kOf1<[](V x, V, V g) { return g / x; }>, kCurve},
      {"log1p",
       "log(1 + x)",
       1,
       kFloats,
       {},
       kOf1<[](V x, V, V g) { return g / (1.0 + x); }>,
       kCurve},
      {"sin", "sin x", 1, kFloats, {}, kOf1<[](V x, V, V g) { return g * Cos(x); }>, kCurve},
      {"cos", "cos x", 1, kFloats, {}, kOf1<[](V x, V, V g) { return -(g * Sin(x)); }>, kCurve},
      {"erf",
       "erf x",
       1,
       kFloats,
       {},
       kOf1<[](V x, V, V g) { return g * ((2.0 * std::numbers::inv_sqrtpi) * Exp(-Square(x))); }>,
       kCurve},
      {"tanh",
       "tanh x",
       1,
       kFloats,
       {},
       kOf1<[](V, V y, V g) { return g * (1.0 - Square(y)); }>,
       kCurve},
      {"sigmoid",
       "1 / (1 + e^-x)",
       1,
       kFloats,
       {},
       kOf1<[](V, V y, V g) { return g * (y * (1.0 - y)); }>,
       kCurve},
      {"softplus",
       "log(1 + e^x)",
       1,
       kFloats,
       {},
       kOf1<[](V x, V, V g) { return g * Sigmoid(x); }>,
       kTwoCurves},
      // 0 at 0, as TensorFlow has it. By the result, so that the operand need not be kept.
      {"relu",
       "max(x, 0)",
       1,
       kFloats,
       {},
       kOf1<[](V, V y, V g) { return g * Cast(Greater(y, 0.0), y.dtype()); }>},
      {"gelu", "x P(X <= x), X normal", 1, InferGelu, {}, GeluGradient, kTwoCurves},
      {.kind = "cast",
       .formula = "x as a `dtype`",
       .operands = 1,
       .infer = InferCast,
       .linearity = {kAlone},
       .gradient = CastGradient,
       .linear = KeepsFloats},
      {"stop_gradient", "x", 1, InferElementwise<Accepts::kAny>, {kAlone}, nullptr},
      // --- what gives a bool, and what takes one
      {"equal", "a = b", 2, kEquals, {}, nullptr},
      {"not_equal", "a != b", 2, kEquals, {}, nullptr},
      {"less", "a < b", 2, kOrders, {}, nullptr},
      {"less_equal", "a <= b", 2, kOrders, {}, nullptr},
      {"greater", "a > b", 2, kOrders, {}, nullptr},
      {"greater_equal", "a >= b", 2, kOrders, {}, nullptr},
      {"logical_and", "a and b", 2, kLogic, {}, nullptr},
      {"logical_or", "a or b", 2, kLogic, {}, nullptr},
      {"logical_not", "not x", 1, kLogic, {}, nullptr},
      {"select", "a where c, else b", 3, InferSelect, {kNone, kJoint}, SelectGradient},
  };
}

}  // namespace

void RegisterElementwiseOps(Registry& registry) {
  std::vector<Line> lines = Lines();
  for (Line& line : lines) {
    OpDef row;
    row.kind = line.kind;
    row.formula = line.formula;
    row.min_operands = row.max_operands = line.operands;
    row.infer = line.infer;
    row.factors = BroadcastTable;
    row.linearity = std::move(line.linearity);
    row.linear = line.linear;
    row.elementwise = true;
    row.moves_data = row.kind == "stop_gradient";
    row.gradient = line.gradient;
    row.cost = line.cost;
    registry.Add(std::move(row));
  }
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
Value Expm1(const Operand& a) { return Record("expm1", {a}); }
Value Sin(const Operand& a) { return Record("sin", {a}); }
Value Cos(const Operand& a) { return Record("cos", {a}); }
Value Softplus(const Operand& a) { return Record("softplus", {a}); }
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

Value SquaredDifference(const Operand& a, const Operand& b) {
  return Square(Operand(Sub(a, b), a.where()));
}

Value Ceil(const Operand& a) {
  const auto at = [&](Value v) { return Operand(v, a.where()); };
  return Neg(at(Floor(at(Neg(a)))));
}

Value Silu(const Operand& a) { return Mul(a, Operand(Sigmoid(a), a.where())); }

// By min(x, 0) and not by a choice of the two: e^x may be infinite where it is not chosen, and its
// gradient would be 0 times that.
Value Elu(const Operand& a, double alpha) {
  const auto at = [&](Value v) { return Operand(v, a.where()); };
  const Value below = Expm1(at(Minimum(a, Operand(0.0, a.where()))));
  return Add(at(Relu(a)), at(Mul(Operand(alpha, a.where()), at(below))));
}

Value LeakyRelu(const Operand& a, double slope) {
  const auto at = [&](Value v) { return Operand(v, a.where()); };
  return Select(at(Greater(a, Operand(0.0, a.where()))), a, at(Mul(a, Operand(slope, a.where()))));
}

Value IsFinite(const Operand& a) {
  const double largest = mesh::LargestFinite(TypeOf(a).dtype);
  return LessEqual(Operand(Abs(a), a.where()), Operand(largest, a.where()));
}

Value IsNan(const Operand& a) { return NotEqual(a, a); }

Value ClipByValue(const Operand& a, const Operand& low, const Operand& high) {
  return Minimum(Operand(Maximum(a, low), a.where()), high);
}

}  // namespace meshtrain::program
