#include "runtime/program/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "runtime/program/ops.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::program {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Here(int line) { return "builder_test.cc:" + std::to_string(line); }

TEST(BuilderTest, RecordsOrdinaryCode) {
  Builder b("double_it");
  const Builder::Scope scope(b);
  const Variable n("n", {DType::kF32, {}});
  const Value x = b.Input("x", {DType::kF32, {8, 4}});
  b.Output("y", x * x);
  AssignAdd(n, 1.0);
  const auto program = b.Build();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->ToString(), R"(program double_it
input x: f32[8,4] = %0
state n: f32[] = %1
%2 = mul(%0, %0) : f32[8,4]
%3 = constant() {dims=[], dtype="f32", value=1.0} : f32[]
%4 = add(%1, %3) : f32[]
output y = %2
update n = %4
)");
}

// Test #1 of the design: reading after assigning sees the new value.
TEST(BuilderTest, ReadingAfterAssigningSeesTheNewVersion) {
  Builder b("adam");
  const Builder::Scope scope(b);
  const Variable m("m", {DType::kF64, {}});
  const Value before = m + 0.0;
  Assign(m, m * 0.5);
  const Value after = m + 0.0;
  AssignSub(m, 1.0);
  b.Output("before", before);
  b.Output("after", after);
  b.Output("last", m);
  const Program p = *b.Build();
  ASSERT_EQ(p.states.size(), 1u);
  EXPECT_EQ(p.states[0].exit, p.outputs[2].value);
  const auto got = testing::Interpret(p, {.states = {{"m", {m.type(), {8}}}}});
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->outputs.at("before").at[0], 8);
  EXPECT_EQ(got->outputs.at("after").at[0], 4);
  EXPECT_EQ(got->outputs.at("last").at[0], 3);
}

TEST(BuilderTest, FirstErrorNamesTheCallersLine) {
  Builder b("wrong");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {8, 4}});
  const Value w = b.Input("w", {DType::kF32, {5, 3}});
  const int line = __LINE__ + 1;
  const Value y = MatMul(x, w);
  b.Output("y", Relu(y) + 1.0);  // ignored, as everything after the first error
  b.Output("z", ReduceSum(x, {9}));
  const auto program = b.Build();
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(program.status().message(),
            Here(line) + ": matmul: expected as many columns on the left as rows on the right, " +
                "got: f32[8,4] and f32[5,3]");
}

// The line is the user's whatever function recorded the op.
TEST(BuilderTest, EveryFunctionPassesTheLineOn) {
  struct Case {
    std::function<int()> record;  // returns its line
    std::string message;
  };
  const Variable scalar("scalar", {DType::kF32, {}});
  const Case cases[] = {
      {[] {
         return Reshape(Ones({2, 3}), {4, -1}), __LINE__;
       },
       "reshape: expected dimensions that hold the 6 elements of f32[2,3] (one may be -1), got: "
       "[4,-1]"},
      {[] {
         return Zeros({2, -3}), __LINE__;
       },
       "fill: expected dimensions of at least 0, got: [2,-3]"},
      {[] {
         return StatelessNormal({2}, {1, 2}, 0, 1, DType::kI32), __LINE__;
       },
       "stateless_normal: expected f32, f64, bf16 or f16, got: i32[2]"},
      {[] { return ReduceMean(Ones({2}, DType::kI32)), __LINE__; },
       "reduce_mean: expected f32, f64, bf16 or f16, got: i32[2]"},
      {[] { return ExpandDims(Ones({2}), 5), __LINE__; },
       "expand_dims: expected an axis in [-2, 2), got: 5"},
      {[] {
         return Squeeze(Ones({2, 1}), {0}), __LINE__;
       },
       "squeeze: expected axes of size 1 of f32[2,1], got: [0]"},
      {[] { return ClipByValue(Ones({2}, DType::kBool), 0.0, 1.0), __LINE__; },
       "maximum: expected numbers, got: bool[2]"},
      {[] { return Dropout(Ones({2}), 1.5, 1, 0.0), __LINE__; },
       "dropout_mask: expected a rate in [0, 1), got: 1.5"},
      {[] { return Ones({2}) + Value(), __LINE__; }, "expected a value, got: none"},
      {[&] { return Assign(scalar, Ones({2})), __LINE__; },
       "variable `scalar`: expected a value of type f32[], got: f32[2]"},
      {[] {
         return Concat({Ones({2}), Ones({3, 1})}, 0), __LINE__;
       },
       "concat: expected shapes that differ in dimension 0 only, got: f32[2] and f32[3,1]"},
  };
  for (const Case& c : cases) {
    Builder b("wrong");
    const Builder::Scope scope(b);
    const int line = c.record();
    EXPECT_THAT(b.status().message(), StartsWith(Here(line) + ": " + c.message));
  }
}

TEST(BuilderTest, NumbersTakeTheOtherOperandsType) {
  Builder b("numbers");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF64, {2}}), i = b.Input("i", {DType::kI32, {2}});
  const Value mask = b.Input("mask", {DType::kBool, {2}});
  EXPECT_EQ((2.0 * x).dtype(), DType::kF64);
  EXPECT_EQ((i + 1).dtype(), DType::kI32);
  EXPECT_EQ(Select(mask, x, 0.0).dtype(), DType::kF64);
  EXPECT_EQ(Select(mask, 0.0, i).dtype(), DType::kI32);
  EXPECT_EQ(Select(mask, 2.0, 0.0).dtype(), DType::kF32);
  EXPECT_EQ(Select(mask, mask, 0.0).dtype(), DType::kBool);
  EXPECT_EQ(Less(x, 1.0).dtype(), DType::kBool);
  EXPECT_TRUE(b.status().ok());
  b.Output("half", i * 0.5);
  EXPECT_THAT(b.Build().status().message(), HasSubstr("expected a number of type i32, got: 0.5"));
}

TEST(BuilderTest, EqualNumbersAreOneConstant) {
  Builder b("constants");
  const Value one = b.Constant(1.0, DType::kF32);
  EXPECT_EQ(b.Constant(1.0, DType::kF32).id(), one.id());
  EXPECT_NE(b.Constant(1.0, DType::kF64).id(), one.id());
  EXPECT_NE(b.Constant(std::nan(""), DType::kF32).id(), one.id());
  EXPECT_NE(b.Constant(0.0, DType::kF32).id(), b.Constant(-0.0, DType::kF32).id());
}

TEST(BuilderTest, PathsFollowNameScopes) {
  Builder b("paths");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {2}});
  Value y, z;
  {
    const Builder::NameScope outer(b, "block");
    {
      const Builder::NameScope inner(b, "dense");
      y = Relu(x);
    }
    z = Exp(y);
  }
  b.Output("z", Neg(z));
  const Program p = *b.Build();
  ASSERT_EQ(p.ops.size(), 3u);
  EXPECT_EQ(p.ops[0].path, "block.dense");
  EXPECT_EQ(p.ops[1].path, "block");
  EXPECT_EQ(p.ops[2].path, "");
}

TEST(BuilderTest, ComposedFunctionsGiveTheShapesOfTheirNames) {
  Builder b("shapes");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {2, 3, 4}});
  EXPECT_EQ(Reshape(x, {-1, 4}).dims(), (Dims{6, 4}));
  EXPECT_EQ(ExpandDims(x, -1).dims(), (Dims{2, 3, 4, 1}));
  EXPECT_EQ(ExpandDims(x, 1).dims(), (Dims{2, 1, 3, 4}));
  EXPECT_EQ(Squeeze(ExpandDims(x, 1), {-3}).dims(), (Dims{2, 3, 4}));
  EXPECT_EQ(Squeeze(ExpandDims(x, 1), {}).dims(), (Dims{2, 1, 3, 4}));
  EXPECT_EQ(Transpose(x, {2, 0, 1}).dims(), (Dims{4, 2, 3}));
  EXPECT_EQ(Pad(x, {1, 0, 0}, {2, 4, 0}).dims(), (Dims{5, 7, 4}));
  EXPECT_EQ(ReduceMax(x, {0, 2}).dims(), (Dims{3}));
  EXPECT_EQ(ReduceMean(x).dims(), Dims{});
  EXPECT_EQ(ReduceSum(x, {-1, 0}, true).dims(), (Dims{1, 3, 1}));
  EXPECT_EQ(ArgMax(x, -1).type().ToString(), "i64[2,3]");
  EXPECT_EQ(Concat({x, x}, -2).dims(), (Dims{2, 6, 4}));
  EXPECT_EQ(Slice(x, {0, 1, 0}, {2, 2, -1}).dims(), (Dims{2, 2, 4}));
  EXPECT_EQ(Iota({5, 2}, -1).type().ToString(), "i64[5,2]");
  EXPECT_EQ(Relayout(x, {"batch", "unsharded", ""}).dims(), x.dims());
  ASSERT_TRUE(b.status().ok()) << b.status().ToString();
  EXPECT_EQ(b.program().ops.back().attrs.Text("specs"), "{batch, *, *}");
}

TEST(BuilderTest, WhatIsPaddedWithIsOfTheType) {
  for (const double number : {300.0, -1.0, 0.5}) {
    Builder b("pad");
    const Builder::Scope scope(b);
    b.Output("y", Pad(b.Input("x", {DType::kU8, {2}}), {1}, {1}, number));
    EXPECT_THAT(b.Build().status().message(), HasSubstr("expected a number of type u8, got: "));
  }
}

// A slice of whole dimensions must not pin their size: the partitioner cuts them.
TEST(BuilderTest, SliceSaysToTheEndOfDimensionsTakenWhole) {
  Builder b("slice");
  const Builder::Scope scope(b);
  Slice(b.Input("x", {DType::kF32, {8, 4}}), {0, 1}, {8, 3});
  EXPECT_EQ(b.program().ops[0].attrs.Ints("sizes"), (Dims{-1, 3}));
}

TEST(BuilderTest, RefusesValuesOfAnotherTrace) {
  Builder other("other"), b("mine");
  const Value foreign = other.Input("x", {DType::kF32, {2}});
  const Value x = b.Input("x", {DType::kF32, {2}});
  Add(x, foreign);
  EXPECT_THAT(b.status().message(), EndsWith("a value of another trace was used"));
}

// The planner holds a value's dimensions in tables of this size.
TEST(BuilderTest, RefusesMoreThan32DimensionsAtTheLineThatMakesThem) {
  {
    Builder b("wide");
    b.Input("x", {DType::kF32, Dims(33, 1)});
    EXPECT_THAT(b.status().message(),
                EndsWith("input `x`: expected at most 32 dimensions, got: 33"));
  }
  Builder b("wide");
  const Value x = b.Input("x", {DType::kF32, Dims(32, 1)});
  EXPECT_TRUE(b.status().ok());
  const int line = __LINE__ + 1;
  Reshape(x, Dims(33, 1));
  EXPECT_EQ(b.status().message(), "builder_test.cc:" + std::to_string(line) +
                                      ": reshape: expected at most 32 dimensions, got: 33");
}

TEST(BuilderTest, RefusesMoreBytesThanAnyMachineHas) {
  Builder b("large");
  const Value x = b.Input("x", {DType::kF32, {1 << 20, 1 << 20}});
  EXPECT_TRUE(b.status().ok());
  BroadcastTo(x, {1 << 12, 1 << 20, 1 << 20});
  EXPECT_THAT(b.status().message(),
              EndsWith("expected at most 2^50 bytes, got: f32[4096,1048576,1048576]"));
}

TEST(BuilderTest, RefusesTwoVariablesOfOneName) {
  Builder b("names");
  b.Read(Variable("w", {DType::kF32, {}}));
  b.Read(Variable("w", {DType::kF32, {}}));
  EXPECT_THAT(b.Build().status().message(),
              EndsWith("variable `w`: another variable of this program has the same name"));
}

TEST(BuilderTest, RefusesTwoOutputsOfOneName) {
  Builder b("names");
  const Value x = b.Input("x", {DType::kF32, {}});
  b.Output("y", x);
  b.Output("y", x);
  EXPECT_EQ(b.Build().status().message(), "output `y` is named twice");
}

TEST(BuilderDeathTest, AnOpOutsideEveryTraceDies) {
  EXPECT_DEATH(Zeros({2}), "an op was recorded outside every trace");
}

}  // namespace
}  // namespace meshtrain::program
