#include "runtime/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/program/registry.h"

namespace meshtrain::plan {
namespace {

using program::Builder;
using program::DType;
using program::Value;
using program::Variable;

// The program as it stands, as if for one device.
sharding::Partitioned OneDevice(program::Program program) {
  sharding::Partitioned p;
  for (const auto& port : program.inputs) {
    p.input_types.push_back(program.type(port.value));
    p.input_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(port.value).rank()));
  }
  for (const auto& state : program.states) {
    p.state_types.push_back(program.type(state.entry));
    p.state_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(state.entry).rank()));
  }
  for (const auto& port : program.outputs) {
    p.output_types.push_back(program.type(port.value));
    p.output_layouts.push_back(mesh::Layout::Replicated(p.mesh, program.type(port.value).rank()));
  }
  for (const auto& value : program.values) {
    p.layouts.push_back(mesh::Layout::Replicated(p.mesh, value.type.rank()));
    p.global_dims.push_back(value.type.dims);
  }
  p.local = std::move(program);
  return p;
}

// What each stored byte range would hold if the plan ran: the value that last wrote it. Reading
// must find the value.
class Memory {
 public:
  explicit Memory(const Plan& plan) : plan_(plan) {}

  void Write(const Slot& slot, ValueId v) {
    if (slot.kind == SlotKind::kArena) {
      EXPECT_LE(slot.offset + slot.bytes, plan_.arena_bytes);
      EXPECT_EQ(slot.offset % 64, 0);
      for (auto it = arena_.begin(); it != arena_.end();) {
        const bool overlaps =
            it->second.begin < slot.offset + slot.bytes && slot.offset < it->second.end;
        it = overlaps ? arena_.erase(it) : std::next(it);
      }
      arena_[v] = {slot.offset, slot.offset + slot.bytes};
    } else {
      held_[{slot.kind, slot.index}] = v;
    }
  }
  bool Holds(const Slot& slot, ValueId v) const {
    if (slot.kind == SlotKind::kArena) return arena_.contains(v);
    const auto it = held_.find({slot.kind, slot.index});
    return it != held_.end() && it->second == v;
  }
  ValueId At(const Slot& slot) const {
    if (slot.kind != SlotKind::kArena) return held_.at({slot.kind, slot.index});
    for (const auto& [v, range] : arena_) {
      if (range.begin == slot.offset && range.end == slot.offset + slot.bytes) return v;
    }
    return program::kNoValue;
  }

 private:
  struct Range {
    int64_t begin, end;
  };
  const Plan& plan_;
  std::map<ValueId, Range> arena_;
  std::map<std::pair<SlotKind, int>, ValueId> held_;
};

// Walks the plan step by step and checks every invariant of plan.h.
void CheckPlan(const Plan& plan) {
  const program::Program& local = plan.local();
  Memory memory(plan);
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    memory.Write(plan.slots[local.inputs[i].value], local.inputs[i].value);
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    memory.Write(plan.slots[local.states[i].entry], local.states[i].entry);
  }
  std::vector<bool> ran(local.ops.size(), false);
  const auto immediate = [&](ValueId v) {
    const int producer = local.values[v].op;
    return plan.slots[v].kind == SlotKind::kNone && producer >= 0 &&
           local.ops[producer].kind == "constant";
  };
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kCopy) {
      memory.Write(step.copy_to, memory.At(step.copy_from));
      continue;
    }
    for (const ValueId v : step.reads) {
      EXPECT_TRUE(memory.Holds(plan.slots[v], v)) << "%" << v << "\n" << local.ToString();
    }
    std::vector<ValueId> made;
    for (const int i : step.ops) {
      EXPECT_FALSE(ran[i]);
      ran[i] = true;
      for (const ValueId v : local.ops[i].operands) {
        const bool inside = std::find(made.begin(), made.end(), v) != made.end();
        const bool read = std::find(step.reads.begin(), step.reads.end(), v) != step.reads.end();
        EXPECT_TRUE(inside || read || immediate(v)) << "%" << v << "\n" << local.ToString();
      }
      made.insert(made.end(), local.ops[i].results.begin(), local.ops[i].results.end());
    }
    for (const ValueId v : step.writes) memory.Write(plan.slots[v], v);
  }
  for (size_t i = 0; i < local.ops.size(); ++i) {
    EXPECT_TRUE(ran[i] || immediate(local.ops[i].results[0])) << i;
  }
  for (size_t i = 0; i < local.outputs.size(); ++i) {
    EXPECT_EQ(memory.At({SlotKind::kOutput, static_cast<int>(i), 0, 0}), local.outputs[i].value)
        << local.ToString();
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    EXPECT_EQ(memory.At({SlotKind::kState, static_cast<int>(i), 0, 0}), local.states[i].exit)
        << local.ToString();
  }
}

Plan PlanOf(Builder& b, const Options& options = {}) {
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  auto plan = MakePlan(OneDevice(*program), options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  CheckPlan(*plan);
  return *plan;
}

int CountSteps(const Plan& plan, StepKind kind) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(),
                                        [&](const Step& s) { return s.kind == kind; }));
}

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
      switch (pick(8)) {
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
      }
    }
    for (int i = 0; i < 3; ++i) {
      b.Output("o" + std::to_string(i), values[pick(static_cast<int>(values.size()))]);
    }
    Options options{.fuse = pick(4) != 0};
    if (pick(2) == 0) options.finite_outputs = {"o0", "o2"};
    PlanOf(b, options);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace meshtrain::plan
