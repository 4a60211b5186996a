#include "runtime/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"
#include "tests/runtime/plan/plans.h"

namespace meshtrain::plan {
namespace {

using program::Builder;
using program::DType;
using program::Value;
using program::Variable;

TEST(PlanTest, AnOptimizersUpdateIsOneChainThatWritesStatesInTheirPlace) {
  Builder b("adam");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {64, 32}}), m("m", w.type()), v("v", w.type());
  const Value g = b.Input("g", w.type());
  Assign(m, 0.9 * m + 0.1 * g);
  Assign(v, 0.999 * v + 0.001 * Square(g));
  AssignSub(w, 0.01 * (m / (Sqrt(v) + 1e-7)));
  const Plan plan = PlanOf(b);
  EXPECT_EQ(CountSteps(plan, StepKind::kFused), 1);
  EXPECT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].reads.size(), 4u);
  EXPECT_EQ(plan.steps[0].writes.size(), 3u);
  EXPECT_EQ(plan.arena_bytes, 0);
}

TEST(PlanTest, AStateThatIsReadAfterItsUpdateWasComputedIsNotOverwrittenEarly) {
  Builder b("late_read");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {8, 8}});
  const Value old = b.Read(w);
  const Value x = b.Input("x", {DType::kF32, {8, 8}});
  Assign(w, old + 1.0);
  b.Output("y", MatMul(x + w, old));  // reads the entry value after the exit value exists
  PlanOf(b);
}

TEST(PlanTest, StatesMaySwapTheirValues) {
  Builder b("swap");
  Builder::Scope scope(b);
  const Variable x("x", {DType::kF32, {4}}), y("y", {DType::kF32, {4}}), z("z", {DType::kF32, {4}});
  const Value old_x = b.Read(x), old_y = b.Read(y);
  Assign(x, old_y);
  Assign(y, old_x);
  Assign(z, old_x + 1.0);
  b.Output("was", old_x);
  PlanOf(b);
}

TEST(PlanTest, OneValueMayBeTwoOutputsAndAState) {
  Builder b("shared");
  Builder::Scope scope(b);
  const Variable s("s", {DType::kF32, {4}});
  const Value x = b.Input("x", {DType::kF32, {4}});
  const Value y = x * 2.0;
  Assign(s, y);
  b.Output("a", y);
  b.Output("b", y);
  b.Output("c", x);
  PlanOf(b);
}

TEST(PlanTest, AChainThatWouldMakeACycleIsSplit) {
  Builder b("cycle");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {8, 8}});
  const Value a = x + 1.0;
  const Value c = a + ReduceSum(MatMul(a, a), {0}, true);  // depends on `a` through a matmul
  b.Output("y", a * c);
  const Plan plan = PlanOf(b);
  EXPECT_GE(CountSteps(plan, StepKind::kFused), 2);
}

// Each tower's chain may take in the other's tanh, but not both: then each would wait for the
// other.
TEST(PlanTest, TwoTowersThatReadEachOtherLoseNoStep) {
  Builder b("towers");
  Builder::Scope scope(b);
  const program::TensorType type{DType::kF32, {4, 8}};
  const Value h = Tanh(b.Input("x", type));
  const Value s = Softmax(h);
  const Value g = Tanh(b.Input("y", type));
  const Value t = Softmax(g);
  b.Output("ht", h + t);
  b.Output("sg", s + g);
  const Plan plan = PlanOf(b);
  EXPECT_EQ(OpsInSteps(plan), 6);
  EXPECT_EQ(CountSteps(plan, StepKind::kOp), 2);
}

// A reshape moves nothing where nobody reads its operand afterwards.
TEST(PlanTest, AReshapeLeavesItsResultInTheOperandsPlace) {
  const auto in_one_place = [](bool read_again) {
    Builder b("reshape");
    Builder::Scope scope(b);
    const Value x = b.Input("x", {DType::kF32, {4, 4}});
    const Value flat = MatMul(x, x), folded = Reshape(flat, {2, 2, 4});
    b.Output("y", Softmax(folded));
    if (read_again) b.Output("z", MatMul(MatMul(x, Softmax(x)), flat));
    const Plan plan = PlanOf(b);
    const Slot &from = plan.slots[flat.id()], &to = plan.slots[folded.id()];
    EXPECT_EQ(from.kind, SlotKind::kArena);
    EXPECT_EQ(to.kind, SlotKind::kArena);
    return from.offset == to.offset;
  };
  EXPECT_TRUE(in_one_place(false));
  EXPECT_FALSE(in_one_place(true));
}

Value AllReduce(Builder& b, const Value& x) {
  return b.Append1("all_reduce", {x},
                   {{"axes", std::vector<int64_t>{0}},
                    {"group", int64_t{2}},
                    {"reduction", std::string("sum")}});
}

// A count that is made after a full bucket needs no message of its own.
TEST(PlanTest, AScalarGoesWithAFullBucket) {
  const auto calls = [](const program::Dims& last, int64_t bucket_bytes) {
    Builder b("packs");
    Builder::Scope scope(b);
    b.Output("sum", AllReduce(b, b.Input("x", {DType::kF32, {4}})));
    b.Output("last", AllReduce(b, b.Input("y", {DType::kF32, last})));
    const Plan plan = PlanOf(b, {.bucket_bytes = bucket_bytes}, *mesh::Mesh::Parse("batch=2"));
    return CountSteps(plan, StepKind::kCollective);
  };
  EXPECT_EQ(calls({}, 16), 1);
  EXPECT_EQ(calls({1}, 16), 2);
  EXPECT_EQ(calls({1}, 17), 1);
  EXPECT_EQ(calls({}, 0), 2) << "each alone";
}

// A bucket's all-reduces are one call, which begins when all its operands are there.
TEST(PlanTest, ABucketHoldsNoSumOfASumInIt) {
  Builder b("sums");
  Builder::Scope scope(b);
  const Value x = b.Input("x", {DType::kF32, {4}});
  const Value once = AllReduce(b, x);
  b.Output("twice", AllReduce(b, once));
  b.Output("other", AllReduce(b, b.Input("y", {DType::kF32, {4}})));
  const Plan plan = PlanOf(b, {}, *mesh::Mesh::Parse("batch=2"));
  EXPECT_EQ(CountSteps(plan, StepKind::kCollective), 2);
}

TEST(PlanTest, AnUpdateThatComesFirstByTheOrderOfCollectivesIsCopiedAfterTheGuard) {
  // The first collective sums what the update made, the second makes the guarded output: in the
  // recorded order the update comes first, so the state gets it through a copy.
  const auto program = program::ParseProgram(R"(program order
input x: f32[4] = %0
state w: f32[4] = %1
%2 = add(%1, %0) : f32[4]
%3 = all_reduce(%2) {axes=[0], group=2, reduction="sum"} : f32[4]
%4 = all_reduce(%0) {axes=[0], group=2, reduction="sum"} : f32[4]
%5 = softmax(%4) : f32[4]
output loss = %5
output sum = %3
update w = %2
)");
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const auto plan = MakePlan(AsItStands(*program, *mesh::Mesh::Parse("batch=2")),
                             {.recorded_order = true, .finite_outputs = {"loss"}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(OpsInSteps(*plan), 4);
  ASSERT_GE(plan->guard_step, 0);
  const Step& last = plan->steps.back();
  EXPECT_EQ(last.kind, StepKind::kCopy);
  EXPECT_EQ(last.copy_to.kind, SlotKind::kState);
}

TEST(PlanTest, CollectivesOfAnotherMeshAreRefused) {
  const auto plan_of = [](const std::string& attrs) {
    const auto program =
        program::ParseProgram("program p\ninput x: f32[4] = %0\n%1 = all_reduce(%0) {" + attrs +
                              "} : f32[4]\noutput y = %1\n");
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return MakePlan(AsItStands(*program, *mesh::Mesh::Parse("batch=2"))).status().message();
  };
  EXPECT_EQ(plan_of("axes=[1], group=2, reduction=\"sum\""),
            "`all_reduce`: expected axes of mesh batch=2, got: 1");
  EXPECT_EQ(plan_of("axes=[0], group=3, reduction=\"sum\""),
            "`all_reduce`: expected a group of 2 devices, each axis once, got: 3");
  EXPECT_EQ(plan_of("axes=[0], group=2, reduction=\"sum\""), "");
}

TEST(PlanTest, TheGuardStandsBeforeAnyStateChanges) {
  Builder b("guard");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {8}});
  const Value x = b.Input("x", {DType::kF32, {8}});
  const Value loss = ReduceMean(Square(x - w));
  const auto g = program::Gradient(loss, std::vector<Variable>{w});
  AssignSub(w, 0.1 * g[0]);
  b.Output("loss", loss);
  const Plan plan = PlanOf(b, {.finite_outputs = {"loss"}});
  ASSERT_GE(plan.guard_step, 0);
  EXPECT_EQ(plan.guarded, std::vector<int>{0});
  for (int s = 0; s <= plan.guard_step; ++s) {
    for (const ValueId v : plan.steps[s].writes) EXPECT_NE(plan.slots[v].kind, SlotKind::kState);
  }
}

// The loss is of what the step has written already, and a second state takes the loss itself: both
// change through copies, after the guard.
TEST(PlanTest, AStateThatTheGuardDependsOnChangesAfterIt) {
  Builder b("guard");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {8}}), last("last", {DType::kF32, {}});
  const Value x = b.Input("x", {DType::kF32, {8}});
  program::AssignAdd(w, x);
  const Value loss = ReduceMean(Square(b.Read(w)));
  program::Assign(last, loss);
  b.Output("loss", loss);
  const Plan plan = PlanOf(b, {.finite_outputs = {"loss"}});
  ASSERT_GE(plan.guard_step, 0);
  ASSERT_LT(plan.guard_step, static_cast<int>(plan.steps.size()));
  bool complete = false;
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const Step& step = plan.steps[s];
    bool changes = step.copy_to.kind == SlotKind::kState;
    for (const ValueId v : step.writes) {
      changes = changes || plan.slots[v].kind == SlotKind::kState;
      complete = complete || v == plan.GuardValues()[0];
    }
    if (!complete) {
      EXPECT_NE(s, plan.guard_step);
    }
    if (changes) {
      EXPECT_GT(s, plan.guard_step);
    }
  }
}

// Integers are finite.
TEST(PlanTest, OnlyFloatingPointOutputsAreGuarded) {
  Builder b("guard");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {}});
  b.Output("count", b.Input("x", {DType::kI32, {8}}) + 1);
  program::Assign(w, b.Read(w) + 1.0);
  const Plan plan = PlanOf(b, {.finite_outputs = {"count"}});
  EXPECT_EQ(plan.guard_step, -1);
  EXPECT_TRUE(plan.guarded.empty());
}

// Each process looks at what it holds itself, and all must find the same.
TEST(PlanTest, AGuardedOutputIsWholeInEachProcess) {
  Builder b("guard");
  Builder::Scope scope(b);
  const Variable w("w", {DType::kF32, {}});
  b.Output("y", b.Input("x", {DType::kF32, {8}}) * 2.0);
  program::Assign(w, b.Read(w) + 1.0);
  const program::Program program = *b.Build();
  const mesh::Mesh mesh = *mesh::Mesh::Parse("batch=2,model=2")->OverProcesses(2);
  const auto status = [&](const std::string& layout, const Options& options) {
    sharding::Given given;
    given.outputs.insert_or_assign("y", *mesh::Layout::Parse(layout, mesh));
    return MakePlan(*sharding::Shard(program, mesh, given), options).status();
  };
  EXPECT_EQ(status("{batch}", {.finite_outputs = {"y"}}),
            InvalidArgument("output `y`: expected a layout in which each process holds all of it, "
                            "since it must be finite before a state changes, got: {batch}"));
  EXPECT_TRUE(status("{model}", {.finite_outputs = {"y"}}).ok());
  EXPECT_TRUE(status("{*}", {.finite_outputs = {"y"}}).ok());
  EXPECT_TRUE(status("{batch}", {}).ok());
}

TEST(PlanTest, AProgramThatChangesNothingHasNoGuard) {
  Builder b("evaluate");
  Builder::Scope scope(b);
  b.Output("loss", ReduceMean(b.Input("x", {DType::kF32, {8}})));
  EXPECT_EQ(PlanOf(b, {.finite_outputs = {"loss"}}).guard_step, -1);
}

TEST(PlanTest, TheHashFollowsWhatRunsAndNotWhereItWasWritten) {
  const auto hash = [](double scale) {
    Builder b("h");
    b.Output("y", b.Input("x", {DType::kF32, {4}}) * scale);
    return PlanOf(b).hash;
  };
  EXPECT_EQ(hash(2), hash(2));
  EXPECT_NE(hash(2), hash(3));
}

// Random programs of element-wise ops, products, reductions, states and outputs.
TEST(PlanTest, RandomProgramsKeepEveryInvariant) {
  const char* given = std::getenv("MT_TEST_SEED");
  const uint32_t base = given != nullptr ? static_cast<uint32_t>(std::atoi(given)) : 1;
  const int count = given != nullptr ? 1 : 300;
  for (uint32_t seed = base; seed < base + static_cast<uint32_t>(count); ++seed) {
    SCOPED_TRACE("MT_TEST_SEED=" + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    Builder b("random");
    Builder::Scope scope(b);
    const program::TensorType type{DType::kF32, {6, 6}};
    std::vector<Variable> states;
    for (int i = 0; i < 4; ++i) states.emplace_back("s" + std::to_string(i), type);
    std::vector<Value> values = {b.Input("x", type), b.Input("y", type)};
    for (int i = 0, ops = 5 + pick(40); i < ops; ++i) {
      const Value a = values[pick(static_cast<int>(values.size()))];
      const Value c = values[pick(static_cast<int>(values.size()))];
      switch (pick(9)) {
        case 0:
          values.push_back(a + c);
          break;
        case 1:
          values.push_back(a * c - 1.0);
          break;
        case 2:
          values.push_back(MatMul(a, c));
          break;
        case 3:
          values.push_back(a * ReduceSum(c, {pick(2)}, true));
          break;
        case 4:
          values.push_back(b.Read(states[pick(4)]));
          break;
        case 5:
          Assign(states[pick(4)], a);
          break;
        case 6:
          values.push_back(Sqrt(a) / (c + ReduceSum(a)));
          break;
        case 7:
          values.push_back(Relu(a));
          break;
        case 8:
          values.push_back(b.Append1("all_reduce", {a},
                                     {{"axes", std::vector<int64_t>{0}},
                                      {"group", int64_t{2}},
                                      {"reduction", std::string("sum")}}));
          break;
      }
    }
    for (int i = 0; i < 3; ++i) {
      b.Output("o" + std::to_string(i), values[pick(static_cast<int>(values.size()))]);
    }
    Options options{.fuse = pick(4) != 0,
                    .fewest_folded = pick(3),
                    .least_repeated = pick(2) * 1000,
                    .overlap = pick(2) == 0,
                    .recorded_order = pick(3) == 0};
    if (pick(2) == 0) options.finite_outputs = {"o0", "o2"};
    PlanOf(b, options, *mesh::Mesh::Parse("batch=2"));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace meshtrain::plan
