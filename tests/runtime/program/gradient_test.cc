#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/support/op_cases/cases.h"

namespace meshtrain::program {
namespace {

using ::testing::HasSubstr;

using testing::Array;
using testing::Arrays;

Array Draw(const TensorType& type, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> numbers(0.5, 1.5);
  Array a(type);
  for (testing::Number& v : a.at) v = numbers(random);
  return a;
}

// The outputs, in real numbers.
Arrays Evaluate(const Program& program, const Arrays& inputs) {
  auto result = testing::Interpret(program, {.inputs = inputs}, testing::Keep::kReal);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return result.ok() ? result->outputs : Arrays();
}
std::vector<double> Numbers(const Array& a) { return {a.at.begin(), a.at.end()}; }

// --- every differentiable row, first and second order, against finite differences in double
// precision

class RowGradientTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(RowGradientTest, MatchesFiniteDifferences) {
  const OpCase& c = GetParam();
  const TensorType result = *TensorType::Parse(c.result);
  const OpDef* def = Registry::Standard().Find(c.kind);
  if (def->gradient == nullptr || !mesh::IsFloat(result.dtype)) return;
  if (def->collective) {
    return;  // no one device can compute them: tests/runtime/strategy has theirs
  }

  // loss = sum(op(x...) * u); each gradient is taken with weights of its own for the second order.
  Builder b(c.kind);
  const Builder::Scope scope(b);
  Arrays feed;
  std::vector<Operand> operands;
  std::vector<Value> wrt;
  const auto types = c.types();
  const auto drawn = DrawOperands(c, 11);
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string name = "x" + std::to_string(i);
    const Value x = b.Input(name, types[i]);
    feed[name] = drawn[i];
    operands.emplace_back(x);
    if (mesh::IsFloat(types[i].dtype)) wrt.push_back(x);
  }
  if (wrt.empty()) return;
  const Value y = b.Append1(c.kind, operands, c.attrs);
  const Value u = b.Input("u", result);
  feed["u"] = Draw(result, 12);
  const Value loss = ReduceSum(Cast(y * u, DType::kF64));
  b.Output("loss", loss);
  const auto gradients = b.Gradient(loss, std::span<const Value>(wrt));
  ASSERT_TRUE(b.status().ok()) << b.status().ToString();
  std::vector<Value> parts;
  for (size_t i = 0; i < wrt.size(); ++i) {
    EXPECT_EQ(gradients[i].type(), wrt[i].type());
    b.Output("g" + std::to_string(i), gradients[i]);
    const std::string name = "v" + std::to_string(i);
    feed[name] = Draw(wrt[i].type(), 13 + i);
    parts.push_back(ReduceSum(Cast(gradients[i] * b.Input(name, wrt[i].type()), DType::kF64)));
  }
  Value second = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) second = second + parts[i];
  b.Output("second", second);
  const auto hessian = b.Gradient(second, std::span<const Value>(wrt));
  for (size_t i = 0; i < wrt.size(); ++i) b.Output("h" + std::to_string(i), hessian[i]);
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();

  const auto at = Evaluate(*program, feed);
  constexpr double kStep = 1e-5;
  size_t index = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!mesh::IsFloat(types[i].dtype)) continue;
    const std::string name = "x" + std::to_string(i);
    for (size_t k = 0; k < feed[name].at.size(); ++k) {
      const testing::Number x = feed[name].at[k];
      feed[name].at[k] = x + kStep;
      const auto up = Evaluate(*program, feed);
      feed[name].at[k] = x - kStep;
      const auto down = Evaluate(*program, feed);
      feed[name].at[k] = x;
      const auto slope = [&](const char* what) {
        return static_cast<double>(up.at(what).at[0] - down.at(what).at[0]) / (2 * kStep);
      };
      const auto first = static_cast<double>(at.at("g" + std::to_string(index)).at[k]);
      const auto second_order = static_cast<double>(at.at("h" + std::to_string(index)).at[k]);
      EXPECT_NEAR(first, slope("loss"), 1e-6 * (1 + std::abs(first)))
          << "operand " << i << " element " << k;
      EXPECT_NEAR(second_order, slope("second"), 1e-5 * (1 + std::abs(second_order)))
          << "second order, operand " << i << " element " << k;
    }
    ++index;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, RowGradientTest, ::testing::ValuesIn(OpCases()), OpCaseName);

// --- the walk

std::vector<double> GradientOf(const std::function<Value(Value)>& f, std::vector<double> x) {
  Builder b("g");
  const Builder::Scope scope(b);
  const Dims dims = {static_cast<int64_t>(x.size())};
  const Value in = b.Input("x", {DType::kF64, dims});
  const std::vector<Value> wrt = {in};
  b.Output("g", b.Gradient(ReduceSum(f(in)), std::span<const Value>(wrt))[0]);
  const auto program = b.Build();
  if (!program.ok()) {
    ADD_FAILURE() << program.status().ToString();
    return {};
  }
  return Numbers(Evaluate(*program, {{"x", Array(in.type(), x)}}).at("g"));
}

using Doubles = std::vector<double>;

TEST(GradientTest, TiesGoAsInTensorFlow) {
  EXPECT_EQ(GradientOf([](Value x) { return Relu(x); }, {-1, 0, 1}), (Doubles{0, 0, 1}));
  EXPECT_EQ(GradientOf([](Value x) { return Abs(x); }, {-1, 0, 1}), (Doubles{-1, 0, 1}));
  EXPECT_EQ(GradientOf([](Value x) { return Maximum(x, 0.0); }, {-1, 0, 1}), (Doubles{0, 1, 1}));
  EXPECT_EQ(GradientOf([](Value x) { return Maximum(0.0, x); }, {-1, 0, 1}), (Doubles{0, 0, 1}));
  EXPECT_EQ(GradientOf([](Value x) { return Minimum(x, 0.0); }, {-1, 0, 1}), (Doubles{1, 1, 0}));
  EXPECT_EQ(GradientOf([](Value x) { return ClipByValue(x, -1.0, 1.0); }, {-2, -1, 0, 1, 2}),
            (Doubles{0, 1, 1, 1, 0}));
  EXPECT_EQ(GradientOf([](Value x) { return ReduceMax(x); }, {3, 1, 3}), (Doubles{0.5, 0, 0.5}));
  EXPECT_EQ(GradientOf([](Value x) { return ReduceMin(x); }, {3, 1, 3}), (Doubles{0, 1, 0}));
}

TEST(GradientTest, PowerOfZeroStaysFinite) {
  Builder b("g");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF64, {2}}), e = b.Input("e", {DType::kF64, {2}});
  const std::vector<Value> wrt = {x, e};
  const auto g = b.Gradient(ReduceSum(Pow(x, e)), std::span<const Value>(wrt));
  b.Output("x", g[0]);
  b.Output("e", g[1]);
  const auto got = Evaluate(*b.Build(), {{"x", {x.type(), {0, 2}}}, {"e", {e.type(), {2, 3}}}});
  EXPECT_EQ(Numbers(got.at("x")), (Doubles{0, 12}));
  EXPECT_EQ(Numbers(got.at("e")), (Doubles{0, 8 * std::log(2.0)}));
}

TEST(GradientTest, StopsWhereAsked) {
  EXPECT_EQ(GradientOf([](Value x) { return StopGradient(x) * x; }, {3}), (Doubles{3}));
  EXPECT_EQ(GradientOf([](Value x) { return Cast(Cast(x, DType::kI64), DType::kF64); }, {3}),
            (Doubles{0}));
  EXPECT_EQ(GradientOf([](Value x) { return Cast(ArgMax(x, 0), DType::kF64); }, {3, 4}),
            (Doubles{0, 0}));
}

TEST(GradientTest, AddsWhatMeetsAtOneValue) {
  EXPECT_EQ(GradientOf([](Value x) { return x * x + 3.0 * x; }, {2}), (Doubles{7}));
}

TEST(GradientTest, IsZeroWhereTheLossDoesNotDepend) {
  Builder b("g");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {2}}), other = b.Input("other", {DType::kF64, {3, 1}});
  const std::vector<Value> wrt = {other};
  b.Output("g", b.Gradient(ReduceSum(x), std::span<const Value>(wrt))[0]);
  const Program p = *b.Build();
  EXPECT_THAT(p.ToString(), HasSubstr("fill() {dims=[3,1], dtype=\"f64\", value=0.0} : f64[3,1]"));
}

TEST(GradientTest, NeedsAScalarLoss) {
  Builder b("g");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {2}});
  const std::vector<Value> wrt = {x};
  b.Gradient(x * 2.0, std::span<const Value>(wrt));
  EXPECT_THAT(b.status().message(),
              HasSubstr("gradient: expected a scalar floating-point loss, got: f32[2]"));
}

TEST(GradientTest, OpsCarryThePathAndLineOfTheirForwardOp) {
  Builder b("g");
  const Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {4, 3}});
  const Value x = b.Input("x", {DType::kF32, {8, 4}});
  Value y;
  int line = 0;
  {
    const Builder::NameScope name(b, "hidden_1");
    line = __LINE__ + 1;
    y = MatMul(x, w);
  }
  const std::vector<Variable> wrt = {w};
  Assign(w, b.Gradient(ReduceSum(y), std::span<const Variable>(wrt))[0]);
  const Program p = *b.Build();
  int products = 0;
  for (const Op& op : p.ops) {
    if (op.kind != "matmul") continue;
    ++products;
    EXPECT_EQ(op.path, "hidden_1");
    EXPECT_EQ(op.where.line, line);
  }
  EXPECT_EQ(products, 1);  // the forward one is dead: the gradient of a sum does not need it
}

// The gradient of a dense layer and its loss, op by op: what the partitioner and the backends will
// see.
TEST(GradientTest, DenseLayerIsTwoProductsAndASum) {
  Builder b("step");
  const Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {4, 3}}), bias("bias", {DType::kF32, {3}});
  const Value x = b.Input("x", {DType::kF32, {8, 4}}),
              labels = b.Input("labels", {DType::kI64, {8}});
  const Value loss = ReduceMean(SparseSoftmaxCrossEntropy(MatMul(x, w) + bias, labels));
  const std::vector<Variable> wrt = {w, bias};
  const auto g = b.Gradient(loss, std::span<const Variable>(wrt));
  b.Output("w", g[0]);
  b.Output("bias", g[1]);
  EXPECT_EQ(b.Build()->ToString(), R"(program step
input x: f32[8,4] = %0
input labels: i64[8] = %1
state w: f32[4,3] = %2
state bias: f32[3] = %3
%4 = matmul(%0, %2) {transpose_a=false, transpose_b=false} : f32[8,3]
%5 = add(%4, %3) : f32[8,3]
%6 = constant() {dims=[], dtype="f32", value=0.125} : f32[]
%7 = constant() {dims=[], dtype="f32", value=1.0} : f32[]
%8 = mul(%7, %6) : f32[]
%9 = broadcast_to(%8) {dims=[8]} : f32[8]
%10 = sparse_softmax_cross_entropy_grad(%5, %1, %9) : f32[8,3]
%11 = reduce_sum(%10) {axes=[0], keep_dims=false} : f32[3]
%12 = matmul(%0, %10) {transpose_a=true, transpose_b=false} : f32[4,3]
output w = %12
output bias = %11
watch "the gradient of `w`" = %12
watch "the gradient of `bias`" = %11
)");
}

}  // namespace
}  // namespace meshtrain::program
