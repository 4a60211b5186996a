// What is made of several ops, where numbers have 16 bits: no step between is beyond what these
// hold.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::program {
namespace {

// What `record` gives for an input of this type whose elements are all `number`.
std::vector<double> Of(DType dtype, Dims dims, double number,
                       const std::function<Value(Value)>& record) {
  Builder b("halves");
  const Builder::Scope scope(b);
  const TensorType type{dtype, std::move(dims)};
  b.Output("y", record(b.Input("x", type)));
  const auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  testing::Array x(type);
  for (testing::Number& v : x.at) v = number;
  const auto result = testing::Interpret(*program, {.inputs = {{"x", x}}});
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  const testing::Array& y = result->outputs.at("y");
  return {y.at.begin(), y.at.end()};
}

TEST(HalvesTest, AMeanIsThereWhereItsSumIsNot) {
  EXPECT_EQ(Of(DType::kF16, {6, 5}, 3000, [](Value x) { return ReduceMean(x); }),
            std::vector<double>{3000});
  for (const Padding padding : {Padding::kValid, Padding::kSame}) {
    const auto mean = [&](Value x) {
      return WindowMean(x, {.sizes = {8, 8}, .strides = {8, 8}, .padding = padding});
    };
    EXPECT_EQ(Of(DType::kF16, {1, 8, 8, 1}, 3000, mean), std::vector<double>{3000});
  }
  // 1/n has no 16 bits either.
  EXPECT_EQ(Of(DType::kF16, {300, 300}, 1, [](Value x) { return ReduceMean(x); }),
            std::vector<double>{1});
}

TEST(HalvesTest, GeluOfLargeNumbersHasAGradient) {
  for (const bool approximate : {true, false}) {
    const auto gradient = [&](Value x) {
      const Value wrt[] = {x};
      return x.builder()->Gradient(ReduceSum(Gelu(x, approximate)), wrt)[0];
    };
    EXPECT_EQ(Of(DType::kF16, {1}, 1000, gradient), std::vector<double>{1});
    EXPECT_EQ(Of(DType::kF16, {1}, -1000, gradient), std::vector<double>{0});
  }
}

TEST(HalvesTest, UniformNumbersAreBelowTheirEnd) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto largest = [&](Value) {
      return ReduceMax(StatelessUniform({1 << 14}, {3, 4}, 0, 1, dtype));
    };
    const double most = Of(dtype, {1}, 0, largest)[0];
    EXPECT_LT(most, 1);
    EXPECT_GT(most, 0.99);
  }
}

// Variables are read as 16 bits within a ReadingScope, by what looks at types too.
TEST(HalvesTest, VariablesAreReadAsTheScopeSays) {
  Builder b("reads");
  const Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {4, 3}});
  {
    const Builder::ReadingScope halves(b, DType::kBF16);
    b.Output("least", ArgMin(w, 1));
    b.Output("mean", ReduceMean(w));
    b.Output("sums", CumSum(w, 0));
    b.Output("dropped", Dropout(w, 0.5, 1, 0.0));
  }
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  for (size_t i = 1; i < program->outputs.size(); ++i) {
    EXPECT_EQ(program->type(program->outputs[i].value).dtype, DType::kBF16)
        << program->outputs[i].name;
  }
}

TEST(HalvesTest, NothingStandsBeforeAnOnlyElement) {
  const auto before = [](Value x) { return CumSum(x / 0.0, 0, /*exclusive=*/true); };
  EXPECT_EQ(Of(DType::kF32, {1}, 1, before), std::vector<double>{0});
}

}  // namespace
}  // namespace meshtrain::program
