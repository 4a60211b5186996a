#include "tests/contract/prover.h"

#include <algorithm>
#include <random>

#include "runtime/base/check.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/factors.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"
#include "tests/support/random/program.h"

namespace meshtrain::prover {
namespace {

using mesh::Layout;
using mesh::Mesh;
using mesh::Partial;
using mesh::Reduction;
using program::Builder;
using program::DType;
using program::Linearity;
using program::Op;
using program::OpDef;
using program::Program;
using program::TensorType;
using program::Value;
using sharding::CostModel;
using sharding::Given;
using sharding::Options;
using sharding::Sharded;

// Of what is computed in `dtype`.
double Tolerance(DType dtype) {
  if (dtype == DType::kF32) return 1e-5;
  return mesh::IsHalf(dtype) ? 32 * mesh::UnitRoundoff(dtype) : 1e-11;
}
constexpr size_t kMaxFailures = 3;
constexpr int kDrawnRuns = 24;
constexpr int kDrawnRunsOfThreeAxes = 12;
constexpr size_t kForcedOfThreeAxes = 48;  // of some hundreds

// Costs that lead the planner elsewhere: as usual; moving is nearly free and computing dear; moving
// is dear.
std::vector<CostModel> CostModels() {
  CostModel free_moves{.flops_per_second = 1e6,
                       .memory_bytes_per_second = 1e6,
                       .link_bytes_per_second = 1e15,
                       .collective_latency_seconds = 0};
  CostModel dear_moves{.flops_per_second = 1e15,
                       .memory_bytes_per_second = 1e12,
                       .link_bytes_per_second = 1e3,
                       .collective_latency_seconds = 0};
  return {CostModel{}, free_moves, dear_moves};
}

std::string InputName(size_t i) { return "x" + std::to_string(i); }

std::vector<TensorType> InputTypes(const Case& c) {
  std::vector<TensorType> types = c.types();
  if (c.twice) types.resize(1);
  return types;
}

// The op alone: output y. With its gradient: outputs d0, d1, ... of sum(y * w), w one more input.
Program Record(const Case& c, bool gradient) {
  Builder b("case");
  Builder::Scope scope(b);
  std::vector<Value> inputs;
  const Value y = program::RecordCase(c, b, &inputs);
  if (!gradient) {
    b.Output("y", y);
  } else {
    const Value w = b.Input("w", y.type());
    std::vector<Value> wrt;
    for (const Value& v : inputs) {
      if (mesh::IsFloat(v.dtype())) wrt.push_back(v);
    }
    const std::vector<Value> gradients = b.Gradient(ReduceSum(y * w), std::span<const Value>(wrt));
    for (size_t i = 0; i < gradients.size(); ++i) b.Output("d" + std::to_string(i), gradients[i]);
  }
  auto program = b.Build();
  if (!program.ok()) {
    std::fprintf(stderr, "%s: %s\n", c.name().c_str(), program.status().ToString().c_str());
  }
  MT_CHECK(program.ok());
  return *std::move(program);
}

// Every way in which one tensor may lie on a mesh of one axis.
std::vector<Layout> LayoutsOf(const Mesh& mesh, const TensorType& type) {
  std::vector<Layout> layouts = {Layout::Replicated(mesh, type.rank())};
  for (int d = 0; d < type.rank(); ++d) layouts.push_back(layouts[0].WithDim(d, {0}));
  if (type.dtype == DType::kBool) return layouts;
  for (const Reduction r : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
    layouts.push_back(layouts[0].WithPartial({{0, r}}));
  }
  return layouts;
}

// One layout of a tensor on any mesh.
Layout DrawLayout(const Mesh& mesh, const TensorType& type, bool may_be_pending,
                  std::mt19937_64& random) {
  std::vector<mesh::DimSharding> dims(type.rank());
  std::vector<Partial> partial;
  const auto reduction = static_cast<Reduction>(random() % 3);
  std::vector<int> axes;
  for (int a = 0; a < mesh.num_axes(); ++a) axes.push_back(a);
  std::shuffle(axes.begin(), axes.end(), random);
  for (const int a : axes) {
    const uint64_t choice = random() % 4;
    if (choice == 0) continue;
    if (choice == 1 && may_be_pending && type.dtype != DType::kBool) {
      partial.push_back({a, reduction});
    } else if (type.rank() > 0) {
      dims[random() % type.rank()].push_back(a);
    }
  }
  return *Layout::Create(mesh, std::move(dims), std::move(partial));
}

class Prover {
 public:
  Prover(const Case& c, uint64_t seed, const Executor& also, int one_in, Extent extent)
      : case_(c),
        types_(InputTypes(c)),
        random_(seed),
        seed_(seed),
        also_(also),
        one_in_(one_in),
        extent_(extent) {
    forward_ = Record(c, false);
    const Op& op = forward_.ops[OpIndex()];
    def_ = program::Registry::Standard().Find(op.kind);
    std::vector<TensorType> operands, results;
    for (const auto v : op.operands) operands.push_back(forward_.type(v));
    for (const auto v : op.results) results.push_back(forward_.type(v));
    table_ = def_->factors({operands, op.attrs}, results);
    const auto drawn = program::DrawOperands(c, seed, /*on_grid=*/true);
    for (size_t i = 0; i < types_.size(); ++i) input_.inputs[InputName(i)] = drawn[i];
    forward_want_ = Whole(forward_);
    const bool any_float = std::any_of(types_.begin(), types_.end(), [](const TensorType& type) {
      return mesh::IsFloat(type.dtype);
    });
    for (const TensorType& type : operands)
      tolerance_ = std::max(tolerance_, Tolerance(type.dtype));
    for (const TensorType& type : results) tolerance_ = std::max(tolerance_, Tolerance(type.dtype));
    differentiable_ = def_->gradient != nullptr && any_float && mesh::IsFloat(results[0].dtype);
    if (differentiable_) {
      backward_ = Record(c, true);
      Case weights{.operands = {forward_.type(forward_.outputs[0].value).ToString()}};
      input_.inputs["w"] = program::DrawOperands(weights, seed + 1, /*on_grid=*/true)[0];
      backward_want_ = Whole(backward_);
    }
  }

  Tally Run() {
    if (extent_ == Extent::kFew) {
      for (const int64_t size : {2, 3}) {
        const Mesh mesh = *Mesh::Create({{"a", size}});
        ForceSplits(mesh);
        TryLayouts(mesh);
      }
      ForceSplits(*Mesh::Create({{"a", 2}, {"b", 2}}), kForcedOfThreeAxes);
      return std::move(tally_);
    }
    for (int64_t size = 1; size <= 4; ++size) {
      const Mesh mesh = *Mesh::Create({{"a", size}});
      ForceSplits(mesh);
      TryLayouts(mesh);
    }
    for (const auto& [first, second] : {std::pair{2, 2}, {2, 3}, {4, 2}, {3, 1}}) {
      ForceSplits(*Mesh::Create({{"a", first}, {"b", second}}));
    }
    for (int i = 0; i < kDrawnRuns; ++i) DrawLayouts(2);
    for (const auto& [first, second, third] : {std::tuple{2, 2, 2}, {3, 1, 2}}) {
      ForceSplits(*Mesh::Create({{"a", first}, {"b", second}, {"c", third}}), kForcedOfThreeAxes);
    }
    for (int i = 0; i < kDrawnRunsOfThreeAxes; ++i) DrawLayouts(3);
    return std::move(tally_);
  }

 private:
  int OpIndex() const {
    for (size_t i = 0; i < forward_.ops.size(); ++i) {
      if (forward_.ops[i].kind == case_.kind) return static_cast<int>(i);
    }
    std::fprintf(stderr, "%s: the case does not record its op\n", case_.name().c_str());
    MT_CHECK(false);
  }

  testing::StepResult Whole(const Program& program) {
    auto want = testing::Interpret(program, input_);
    if (!want.ok()) Fail("unsharded: " + want.status().ToString());
    return want.ok() ? *std::move(want) : testing::StepResult();
  }

  void Fail(const std::string& text) {
    if (tally_.failures.size() < kMaxFailures)
      tally_.failures.push_back(case_.name() + ": " + text);
  }

  static std::string Text(const Program& program, const Mesh& mesh, const Given& given) {
    std::string text = "mesh " + mesh.ToString();
    for (const auto& [name, layout] : given.inputs) text += ", " + name + " " + layout.ToString();
    for (const auto& [name, layout] : given.outputs) {
      text += ", output " + name + " " + layout.ToString();
    }
    return text + "\n" + program.ToString();
  }

  void Compare(const Result<sharding::Partitioned>& partitioned, const testing::StepResult& want,
               const std::function<std::string()>& what) {
    ++tally_.runs;
    if (!partitioned.ok()) return Fail(what() + partitioned.status().ToString());
    if (const Status valid = program::Validate(partitioned->local); !valid.ok()) {
      return Fail(what() + valid.ToString() + "\n" + partitioned->local.ToString());
    }
    const uint64_t seed = seed_ + static_cast<uint64_t>(tally_.runs);
    Check(testing::Interpret(*partitioned, input_, seed), *partitioned, want, what);
    if (also_ == nullptr || tally_.runs % one_in_ != 0) return;
    Check(also_(*partitioned, input_, seed), *partitioned, want,
          [&] { return "executor: " + what(); });
  }

  void Check(const Result<testing::StepResult>& got, const sharding::Partitioned& partitioned,
             const testing::StepResult& want, const std::function<std::string()>& what) {
    if (!got.ok()) {
      return Fail(what() + got.status().ToString() + "\n" + partitioned.local.ToString());
    }
    for (const auto& [name, array] : want.outputs) {
      const double difference = Difference(got->outputs.at(name), array);
      if (difference <= (mesh::IsFloat(array.type.dtype) ? tolerance_ : 0)) continue;
      return Fail(what() + "output " + name + " differs by " + std::to_string(difference) + "\n" +
                  partitioned.local.ToString());
    }
  }

  // --- splits forced upon the op

  // All splits, or `most` of them drawn by seed.
  void ForceSplits(const Mesh& mesh, size_t most = SIZE_MAX) {
    std::vector<sharding::Split> splits = {Empty()};
    const sharding::AxisSizes sizes(mesh);
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (sizes.size[axis] == 1) continue;  // splits nothing; Placement leaves it out
      std::vector<sharding::Split> more;
      for (const sharding::Split& split : splits) {
        more.push_back(split);
        for (size_t f = 0; f < split.factors.size(); ++f) {
          if (!sharding::Splittable(table_.factors[f])) continue;
          sharding::Split next = split;
          next.factors[f].Add(axis);
          more.push_back(next);
          if (next.factors[f].count == 2) {
            std::swap(next.factors[f].axis[0], next.factors[f].axis[1]);
            more.push_back(next);
          }
        }
        for (const Reduction r : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
          for (const uint32_t operands : Passing(r)) {
            if (split.Passes() && (split.passing_operands != operands || Pending(split) != r)) {
              continue;
            }
            sharding::Split next = split;
            next.passing.at[axis] = sharding::Placement::PendingCode(r);
            next.passing_operands = operands;
            more.push_back(next);
          }
        }
      }
      splits = std::move(more);
    }
    std::erase_if(splits, [&](const sharding::Split& split) {
      return !sharding::Representable(table_, split, sizes);
    });
    if (splits.size() > most) {
      std::shuffle(splits.begin(), splits.end(), random_);
      splits.resize(most);
    }
    for (const sharding::Split& split : splits) {
      Force(mesh, split, true);
      Force(mesh, split, false);
    }
  }

  sharding::Split Empty() const {
    sharding::Split split;
    split.factors.resize(table_.factors.size());
    return split;
  }

  static Reduction Pending(const sharding::Split& split) {
    for (const int8_t code : split.passing.at) {
      if (code <= sharding::Placement::kPendingSum) return sharding::Placement::ReductionOf(code);
    }
    return Reduction::kSum;
  }

  // The sets of operands that the row allows to be pending together.
  std::vector<uint32_t> Passing(Reduction reduction) const {
    std::vector<uint32_t> sets;
    uint32_t joint = 0;
    const Op& op = forward_.ops[OpIndex()];
    std::vector<program::TensorType> types;
    for (const program::ValueId v : op.operands) types.push_back(forward_.type(v));
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!FromInput(op.operands[i])) return {};
      if (forward_.type(op.operands[i]).dtype == DType::kBool) continue;
      const Linearity linearity =
          def_->moves_data && def_->linearity.empty() ? Linearity::kJoint
          : reduction == Reduction::kSum || def_->moves_data
              ? program::LinearityOf(*def_, {types, op.attrs}, static_cast<int>(i))
              : Linearity::kNone;
      if (linearity == Linearity::kAlone) sets.push_back(1u << i);
      if (linearity == Linearity::kJoint) joint |= 1u << i;
    }
    if (joint != 0) sets.push_back(joint);
    return sets;
  }

  bool FromInput(program::ValueId v) const { return forward_.values[v].op < 0; }

  // `laid_out`: inputs already lie as the split wants them; else they are copies (unless pending)
  // and are cut on the way.
  void Force(const Mesh& mesh, const sharding::Split& split, bool laid_out) {
    const Op& op = forward_.ops[OpIndex()];
    Given given;
    for (size_t i = 0; i < forward_.inputs.size(); ++i) {
      const program::ValueId v = forward_.inputs[i].value;
      const auto at = std::find(op.operands.begin(), op.operands.end(), v);
      if (at == op.operands.end()) continue;
      // An input used twice can only lie one way; and it is pending in both places or in none.
      if (std::count(op.operands.begin(), op.operands.end(), v) > 1 && split.Passes()) return;
      const auto operand = static_cast<int>(at - op.operands.begin());
      Layout layout = sharding::LayoutOf(sharding::OperandPlacement(table_, split, operand), mesh,
                                         forward_.type(v).rank());
      if (!laid_out && !layout.IsPartial()) layout = Layout::Replicated(mesh, layout.rank());
      given.inputs.insert_or_assign(forward_.inputs[i].name, layout);
    }
    const auto what = [&] { return "forced split, " + Text(forward_, mesh, given); };
    auto sharded = sharding::Propagate(forward_, mesh, given);
    if (!sharded.ok()) return Fail(what() + sharded.status().ToString());
    sharding::OpSplit& forced = sharded->splits[OpIndex()];
    forced = {};
    for (const sharding::AxisList& axes : split.factors) {
      forced.factors.emplace_back(axes.begin(), axes.end());
    }
    for (int a = 0; a < mesh.num_axes(); ++a) {
      if (split.passing.pending(a)) {
        forced.passing.push_back({a, sharding::Placement::ReductionOf(split.passing.at[a])});
      }
    }
    for (int i = 0; i < 32; ++i) {
      if (split.passing_operands >> i & 1) forced.passing_operands.push_back(i);
    }
    Compare(sharding::Partition(*sharded), forward_want_, what);
  }

  // --- layouts given, splits chosen

  void TryLayouts(const Mesh& mesh) {
    std::vector<std::vector<Layout>> choices;
    for (const TensorType& type : types_) choices.push_back(LayoutsOf(mesh, type));
    std::vector<size_t> at(choices.size(), 0);
    for (;;) {
      Given given;
      for (size_t i = 0; i < choices.size(); ++i) {
        given.inputs.insert_or_assign(InputName(i), choices[i][at[i]]);
      }
      Try(mesh, given);
      size_t i = 0;
      while (i < at.size() && ++at[i] == choices[i].size()) at[i++] = 0;
      if (i == at.size()) return;
    }
  }

  void DrawLayouts(int num_axes) {
    std::vector<mesh::Axis> axes;
    for (int a = 0; a < num_axes; ++a) {
      const uint64_t largest = num_axes > 2 ? 3 : 4;
      axes.push_back({std::string(1, static_cast<char>('a' + a)),
                      static_cast<int64_t>(random_() % largest + 1)});
    }
    const Mesh mesh = *Mesh::Create(std::move(axes));
    Given given;
    for (size_t i = 0; i < types_.size(); ++i) {
      given.inputs.insert_or_assign(InputName(i), DrawLayout(mesh, types_[i], true, random_));
    }
    Try(mesh, given);
  }

  void Try(const Mesh& mesh, Given given) {
    for (const CostModel& cost : CostModels()) {
      TryOne(forward_, forward_want_, mesh, given, cost);
      if (!differentiable_) continue;
      Given both = given;
      both.inputs.insert_or_assign("w", DrawLayout(mesh, forward_.type(forward_.outputs[0].value),
                                                   random_() % 2 == 0, random_));
      TryOne(backward_, backward_want_, mesh, std::move(both), cost);
    }
  }

  void TryOne(const Program& program, const testing::StepResult& want, const Mesh& mesh,
              Given given, const CostModel& cost) {
    for (const program::Port& p : program.outputs) {
      if (random_() % 2 == 0) continue;
      given.outputs.insert_or_assign(p.name,
                                     DrawLayout(mesh, program.type(p.value), false, random_));
    }
    Compare(sharding::Shard(program, mesh, given, Options{.cost = cost}), want,
            [&] { return Text(program, mesh, given); });
  }

  const Case& case_;
  std::vector<TensorType> types_;  // of the inputs
  std::mt19937_64 random_;
  uint64_t seed_;
  const Executor& also_;
  int one_in_;
  Extent extent_;
  double tolerance_ = 0;
  Program forward_, backward_;
  const OpDef* def_ = nullptr;
  program::FactorTable table_;
  bool differentiable_ = false;
  testing::StepInput input_;
  testing::StepResult forward_want_, backward_want_;
  Tally tally_;
};

}  // namespace

std::vector<Case> AllCases() {
  std::vector<Case> cases = program::OpCases();
  std::erase_if(cases, [](const Case& c) {
    const auto types = c.types();
    return !testing::IsOfWholePrograms(*program::Registry::Standard().Find(c.kind)) ||
           std::any_of(types.begin(), types.end(),
                       [](const TensorType& type) { return type.num_elements() == 0; });
  });
  for (Case& c : cases) {
    for (std::string& operand : c.operands) {
      // Rows about f32 itself say so.
      if (operand.starts_with("f32") && c.note != "of f32") operand.replace(0, 3, "f64");
    }
    const OpDef& def = *program::Registry::Standard().Find(c.kind);
    c.result = (*def.infer({c.types(), c.attrs}))[0].ToString();
  }
  return cases;
}

std::vector<Case> TypeCases() { return program::MissingTypes(AllCases()); }

Tally Prove(const Case& c, uint64_t seed, const Executor& also, int one_in, Extent extent) {
  return Prover(c, seed, also, one_in, extent).Run();
}

}  // namespace meshtrain::prover
