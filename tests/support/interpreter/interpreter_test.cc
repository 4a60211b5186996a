// The interpreter's own test: integers are exact, and a bound holds what rounding can do.
#include "tests/support/interpreter/interpreter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/support/op_cases/cases.h"
#include "tests/support/random/program.h"

namespace meshtrain::testing {
namespace {

using mesh::DType;
using mesh::TensorType;
using program::Builder;
using program::OpCase;
using program::Value;

TEST(InterpreterTest, KnowsEveryOpOfWholePrograms) {
  for (const OpCase& c : program::OpCases()) {
    if (!IsOfWholePrograms(*program::Registry::Standard().Find(c.kind))) continue;
    const std::vector<Array> operands = DrawOperands(c, 1);
    std::vector<const Array*> pointers;
    for (const Array& a : operands) pointers.push_back(&a);
    const program::Op op{.kind = c.kind, .attrs = c.attrs};
    const auto got = EvaluateOp(op, pointers, {*TensorType::Parse(c.result)}, {});
    EXPECT_TRUE(got.ok()) << got.status().ToString();
  }
}

TEST(InterpreterTest, IntegersBeyond53BitsAreExactAndWrapAround) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TensorType type{DType::kI64, {3}};
  Builder b("whole");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", type), y = b.Input("y", type);
  b.Output("sum", x + y);
  b.Output("product", x * y);
  b.Output("less", Less(x, y));
  b.Output("total", ReduceSum(x));
  b.Output("top", ReduceMax(x));
  b.Output("small", Cast(x, DType::kI32));
  b.Output("byte", Cast(x, DType::kU8));
  const StepInput in{.inputs = {{"x", Array(type, std::vector<int64_t>{kMost, kMost - 1, 1})},
                                {"y", Array(type, std::vector<int64_t>{1, kMost, 3})}}};
  for (const Keep keep : {Keep::kRounded, Keep::kBounded}) {
    const auto out = Interpret(*b.Build(), in, keep);
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    const auto whole = [&](const char* name) {
      const auto& at = out->outputs.at(name).at;
      return std::vector<int64_t>(at.begin(), at.end());
    };
    const auto wrapped = [](uint64_t v) { return static_cast<int64_t>(v); };
    const auto most = static_cast<uint64_t>(kMost);
    EXPECT_EQ(whole("sum"), (std::vector<int64_t>{wrapped(most + 1), wrapped(2 * most - 1), 4}));
    EXPECT_EQ(whole("product"), (std::vector<int64_t>{kMost, wrapped((most - 1) * most), 3}));
    EXPECT_EQ(whole("less"), (std::vector<int64_t>{0, 1, 1}));
    EXPECT_EQ(whole("total"), (std::vector<int64_t>{wrapped(2 * most)}));
    EXPECT_EQ(whole("top"), (std::vector<int64_t>{kMost}));
    EXPECT_EQ(whole("small"), (std::vector<int64_t>{-1, -2, 1}));
    EXPECT_EQ(whole("byte"), (std::vector<int64_t>{255, 254, 1}));
  }
}

TEST(InterpreterTest, CastsToIntegersGoTowardsZeroAndToTheEnds) {
  Builder b("cast");
  const Builder::Scope scope(b);
  const TensorType type{DType::kF64, {4}};
  b.Output("y", Cast(b.Input("x", type), DType::kI32));
  const auto out =
      Interpret(*b.Build(), {.inputs = {{"x", Array(type, {1.9L, -1.9L, 3e9L, -3e9L})}}});
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->outputs.at("y").at, (std::vector<Number>{1, -1, 2147483647, -2147483648.0L}));
}

// The nearest f32 of what operands stand for is a right operand: with each operand moved within its
// bound and each op rounded to f32, whatever comes out is within the bound of the result.
TEST(BoundsTest, HoldWhatRoundingDoes) {
  std::mt19937_64 random(FirstSeed());
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + 150; ++seed) {
    const program::Program p = RandomProgram(seed);
    const StepInput feed = FeedFor(p, seed);
    const auto want = Interpret(p, feed, Keep::kBounded);
    const auto got = Interpret(p, feed, Keep::kRounded);
    ASSERT_TRUE(want.ok() && got.ok());
    for (const auto& [name, w] : want->outputs) {
      const Array& g = got->outputs.at(name);
      for (size_t i = 0; i < w.at.size(); ++i) {
        if (std::isinf(w.error[i])) continue;
        EXPECT_LE(std::abs(g.at[i] - w.at[i]), w.error[i])
            << "MT_TEST_SEED=" << seed << " output " << name << " at " << i;
      }
    }
  }
}

// Each op on operands that are off by a part of their error: the result's bound holds what the op
// makes of any of them.
TEST(BoundsTest, HoldWhatOperandsMayBe) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> part(-1, 1);
  for (const OpCase& c : program::OpCases()) {
    const auto* def = program::Registry::Standard().Find(c.kind);
    if (!IsOfWholePrograms(*def) || def->kind == "dropout_mask") continue;
    const TensorType result = *TensorType::Parse(c.result);
    const program::Op op{.kind = c.kind, .attrs = c.attrs};
    std::vector<Array> operands = DrawOperands(c, 3);
    for (Array& a : operands) {
      a = Given(std::move(a));
      if (!mesh::IsFloat(a.type.dtype)) continue;
      for (size_t i = 0; i < a.at.size(); ++i) a.error[i] = 0.01 * std::abs(part(random));
    }
    if (c.twice) operands[1] = operands[0];
    const auto evaluate = [&](const std::vector<Array>& at, Keep keep) {
      std::vector<const Array*> pointers;
      for (const Array& a : at) pointers.push_back(&a);
      return (*EvaluateOp(op, pointers, {result}, {.keep = keep}))[0];
    };
    const Array want = evaluate(operands, Keep::kBounded);
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<Array> moved = operands;
      for (Array& a : moved) {
        for (size_t i = 0; i < a.at.size(); ++i) a.at[i] += a.error[i] * part(random);
      }
      const Array got = evaluate(moved, Keep::kReal);
      for (size_t i = 0; i < want.at.size(); ++i) {
        if (std::isinf(want.error[i])) continue;
        ASSERT_LE(std::abs(got.at[i] - want.at[i]), want.error[i] * (1 + 1e-9))
            << c.name() << " at " << i;
      }
    }
  }
}

// A bound that holds anything is worth nothing: of exact operands it is a few units in the last
// place, and nothing for sums on a grid.
TEST(BoundsTest, AreTight) {
  Builder b("tight");
  const Builder::Scope scope(b);
  const TensorType type{DType::kF32, {1000}};
  const Value x = b.Input("x", type);
  b.Output("sum", ReduceSum(x));
  b.Output("exp", Exp(x));
  b.Output("decided", Greater(x * 3.0, 0.5));
  const StepInput feed = FeedFor(*b.Build(), 5);
  const auto out = Interpret(*b.Build(), feed, Keep::kBounded);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->outputs.at("sum").error[0], 0);
  for (int i = 0; i < 1000; ++i) {
    const Array& e = out->outputs.at("exp");
    EXPECT_LE(e.error[i], 4e-7 * static_cast<double>(e.at[i]));
    EXPECT_EQ(out->outputs.at("decided").error[i], 0);
  }
}

// The sum itself is exact, on a grid; a factor that each device gives its part rounds every one of
// them and every addition of them.
TEST(BoundsTest, HoldASumWhosePartsHaveTheFactor) {
  constexpr int kParts = 16;
  Builder b("parts");
  const Builder::Scope scope(b);
  const TensorType type{DType::kF32, {kParts}};
  b.Output("y", ReduceSum(b.Input("x", type)) * 0.1);
  const program::Program program = *b.Build();
  std::mt19937_64 random(3);
  int beyond_one_rounding = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    Array x(type);
    float by_parts = 0;
    for (Number& v : x.at) {
      v = static_cast<float>(random() % 1000);
      by_parts += static_cast<float>(v) * 0.1F;
    }
    const auto out = Interpret(program, {.inputs = {{"x", x}}, .states = {}}, Keep::kBounded);
    ASSERT_TRUE(out.ok());
    const Array& y = out->outputs.at("y");
    const auto off = std::abs(static_cast<double>(by_parts - y.at[0]));
    ASSERT_LE(off, y.error[0]) << trial;
    beyond_one_rounding += off > 0x1p-23 * static_cast<double>(y.at[0]) ? 1 : 0;
  }
  EXPECT_GT(beyond_one_rounding, 0);
}

// What is open stays open: the bound holds both branches, and nothing is said beyond them.
TEST(BoundsTest, HoldBothSidesOfAnOpenDecision) {
  Builder b("open");
  const Builder::Scope scope(b);
  const TensorType type{DType::kF32, {2}};
  const Value x = b.Input("x", type);
  const Value y = Exp(x) - Exp(x);  // 0, but for rounding
  b.Output("sign", Sign(y));
  b.Output("chosen", Select(Greater(y, 0.0), x, x + 4.0));
  const auto out = Interpret(*b.Build(), {.inputs = {{"x", Array(type, {1, 2})}}}, Keep::kBounded);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->outputs.at("sign").error, (std::vector<double>{1, 1}));
  for (int i = 0; i < 2; ++i) {
    const Array& chosen = out->outputs.at("chosen");
    const auto at = static_cast<double>(chosen.at[i]);
    for (const double branch : {1.0 + i, 5.0 + i})
      EXPECT_LE(std::abs(branch - at), chosen.error[i]);
    EXPECT_LT(chosen.error[i], 4.001);
  }
}

}  // namespace
}  // namespace meshtrain::testing
