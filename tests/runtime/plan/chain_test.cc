// Chains of element-wise ops: what is in one, and what of it is in memory.
#include <gtest/gtest.h>

#include <functional>

#include "runtime/program/ops.h"
#include "tests/runtime/plan/plans.h"

namespace meshtrain::plan {
namespace {

using program::Builder;
using program::DType;
using program::Value;
using program::Variable;

TEST(ChainTest, AChainStretchesItsOperandsItself) {
  Builder b("stretched");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {4, 8}});
  const Value stretched = BroadcastTo(ReduceSum(x, {1}, true), {4, 8});
  b.Output("y", x * stretched);
  const Plan plan = PlanOf(b);
  EXPECT_EQ(CountSteps(plan, StepKind::kFused), 1);
  EXPECT_EQ(CountSteps(plan, StepKind::kOp), 1) << "the sum";
  EXPECT_EQ(plan.slots[stretched.id()].kind, SlotKind::kNone) << "it is written nowhere";
}

// The gradient of relu reads its result, which is kept for the product, and not a mask of it.
TEST(ChainTest, WhatIsReadMuchLaterIsMadeThere) {
  Builder b("relu");
  Builder::Scope scope(b);
  const program::TensorType type{DType::kF32, {8, 8}};
  const Value x = b.Input("x", type), w = b.Input("w", type);
  const Value y = Relu(x * 2.0);
  const Value mask = program::Cast(Greater(y, 0.0), DType::kF32);
  b.Output("g", MatMul(MatMul(y, w), w) * mask);
  const Plan plan = PlanOf(b);
  EXPECT_EQ(plan.steps.size(), 4u) << plan.Report();
  EXPECT_EQ(plan.slots[mask.id()].kind, SlotKind::kNone);

  // Where the operand is kept for this alone, it is made at once.
  Builder other("square");
  Builder::Scope other_scope(other);
  const Value v = other.Input("v", type), weights = other.Input("weights", type);
  const Value u = v * 2.0;
  const Value late = Square(u);
  other.Output("g", MatMul(Relu(u), weights) * late);
  const Plan at_once = PlanOf(other);
  EXPECT_EQ(at_once.slots[u.id()].kind, SlotKind::kNone);
  EXPECT_NE(at_once.slots[late.id()].kind, SlotKind::kNone);
}

// A mean is taken off, squares are added, and much later its gradient wants the same difference:
// the mean is taken off once more, and the difference is written nowhere.
TEST(ChainTest, WhatIsCheapIsComputedAgainWhereItIsReadMuchLater) {
  const program::TensorType type{DType::kF32, {8, 32}};
  struct Made {
    Plan plan;
    bool stored;
  };
  const auto plan_of = [&](int64_t least_repeated, bool read_by_a_product) {
    Builder b("centred");
    Builder::Scope scope(b);
    const Value x = MatMul(b.Input("x", type), b.Input("w", {DType::kF32, {32, 32}}));
    const Value centred = x - b.Input("mean", {DType::kF32, {32}});
    const Value squares = ReduceSum(Square(centred), {0});
    const Value factor = program::Rsqrt(Softmax(squares));
    b.Output("y", centred * factor);
    if (read_by_a_product) b.Output("z", MatMul(centred, b.Input("v", {DType::kF32, {32, 2}})));
    Plan plan = PlanOf(b, {.fewest_folded = 2, .least_repeated = least_repeated});
    const bool stored = plan.slots[centred.id()].kind != SlotKind::kNone;
    return Made{std::move(plan), stored};
  };
  const Made again = plan_of(0, false);
  EXPECT_FALSE(again.stored);
  EXPECT_EQ(OpsInSteps(again.plan), 8) << again.plan.Report();
  EXPECT_TRUE(plan_of(8 * 32 * 4, false).plan.hash == again.plan.hash);
  const Made small = plan_of(8 * 32 * 4 + 1, false);
  EXPECT_TRUE(small.stored);
  EXPECT_EQ(OpsInSteps(small.plan), 7) << small.plan.Report();
  EXPECT_EQ(small.plan.flops, again.plan.flops) << "what is computed twice counts once";
  EXPECT_TRUE(plan_of(0, true).stored) << "it is in memory, and is read";
}

// What is computed again is so of values that stay as they are, not of a state that changes.
TEST(ChainTest, NothingIsComputedAgainOfAStateThatChanges) {
  for (const bool changes : {false, true}) {
    Builder b("state");
    Builder::Scope scope(b);
    const Variable w("w", {DType::kF32, {8, 32}});
    const Value half = b.Read(w) * 0.5;
    b.Output("y", half + ReduceSum(Square(half), {0}));
    if (changes) Assign(w, b.Read(w) * 0.9);
    const Plan plan = PlanOf(b, {.fewest_folded = 2, .least_repeated = 0});
    EXPECT_EQ(plan.slots[half.id()].kind != SlotKind::kNone, changes)
        << plan.partitioned.local.ToString() << plan.Report();
  }
}

// The result lies where the operand lay, element for element, if nobody reads that any more.
TEST(ChainTest, AChainWritesOverAnOperandThatNobodyReadsBehindIt) {
  const program::TensorType type{DType::kF32, {16, 16}};
  const auto in_one_place = [&](const std::function<Value(const Value&)>& chain, bool read_again) {
    Builder b("over");
    Builder::Scope scope(b);
    const Value x = b.Input("x", type), product = MatMul(x, x), made = chain(product);
    b.Output("y", MatMul(made, x));
    if (read_again) b.Output("z", MatMul(product, MatMul(made, x)));
    const Plan plan = PlanOf(b, {.fewest_folded = 2});
    const Slot &from = plan.slots[product.id()], &to = plan.slots[made.id()];
    EXPECT_EQ(from.kind, SlotKind::kArena);
    EXPECT_EQ(to.kind, SlotKind::kArena);
    return from.offset == to.offset;
  };
  const auto tanh = [](const Value& v) { return Tanh(v) * 2.0; };
  EXPECT_TRUE(in_one_place(tanh, false));
  EXPECT_FALSE(in_one_place(tanh, true));
  EXPECT_TRUE(in_one_place([](const Value& v) { return v - ReduceSum(v, {1}, true); }, false))
      << "whole rows are read before they are written";
}

// Softmax's gradient, y * (g - sum(y * g)): one pass, and nothing in memory but the result.
TEST(ChainTest, AChainFoldsItsRows) {
  Builder b("rows");
  Builder::Scope scope(b);
  const program::TensorType type{DType::kF32, {4, 32}};
  const Value y = b.Input("y", type), g = b.Input("g", type);
  b.Output("dx", y * (g - ReduceSum(y * g, {1}, true)));
  const Plan plan = PlanOf(b, {.fewest_folded = 16});
  EXPECT_EQ(CountSteps(plan, StepKind::kFused), 1);
  EXPECT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(PlanOf(b, {.fewest_folded = 33}).steps.size(), 3u) << "rows are shorter";
}

// A bias's gradient: the sums are made in the pass that makes what they add, which need not be
// kept.
TEST(ChainTest, AChainAddsItsColumns) {
  Builder b("columns");
  Builder::Scope scope(b);
  const program::TensorType type{DType::kF32, {64, 8}};
  const Value product = b.Input("y", type) * b.Input("g", type);
  const Value sums = ReduceSum(product, {0});
  b.Output("db", sums);
  b.Output("total", ReduceSum(product));
  const Plan plan = PlanOf(b, {.fewest_folded = 16});
  EXPECT_EQ(plan.steps.size(), 1u) << plan.Report();
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(PlanOf(b, {.fewest_folded = 65}).steps.size(), 2u) << "columns are shorter";
  EXPECT_EQ(PlanOf(b, {.fewest_folded = 0}).steps.size(), 3u);
}

// A sum of columns is there when its chain has ended: what reads it is another one.
TEST(ChainTest, WhatReadsASumOfColumnsIsAnotherChain) {
  for (const bool through_another : {false, true}) {
    Builder b("centred");
    Builder::Scope scope(b);
    const Value y = b.Input("x", {DType::kF32, {16, 16}}) * 2.0;
    const Value sums = ReduceSum(y, {0});
    b.Output("z", y - (through_another ? BroadcastTo(sums, {16, 16}) : sums * 0.0625));
    const Plan plan = PlanOf(b, {.fewest_folded = 2});
    ASSERT_EQ(plan.steps.size(), through_another ? 2u : 3u) << plan.Report();
    EXPECT_EQ(plan.steps[0].ops.size(), 2u) << "the product and its sums";
    EXPECT_NE(plan.slots[sums.id()].kind, SlotKind::kNone);
  }
}

// On a square, sums of rows may be read along each row: then all of them are made before.
TEST(ChainTest, SumsOfRowsThatAreReadAlongARowAreMadeBefore) {
  for (const bool through_another : {false, true}) {
    Builder b("square");
    Builder::Scope scope(b);
    const Value y = b.Input("x", {DType::kF32, {16, 16}}) * 2.0;
    const Value sums = ReduceSum(y, {1});
    const Value along = through_another ? BroadcastTo(sums, {16, 16}) : sums;
    b.Output("z", y + along);
    const Plan plan = PlanOf(b, {.fewest_folded = 2});
    EXPECT_EQ(plan.steps.size(), 2u) << plan.Report();
    EXPECT_NE(plan.slots[sums.id()].kind, SlotKind::kNone);
  }
}

}  // namespace
}  // namespace meshtrain::plan
