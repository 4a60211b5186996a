// The cost-based choice of each op's split.
#include "runtime/sharding/solve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/base/check.h"
#include "runtime/sharding/lint.h"
#include "runtime/sharding/windows.h"

namespace meshtrain::sharding {
namespace {

using program::DimFactors;
using program::FactorTable;
using program::Linearity;
using program::Op;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// What an axis may do in an op, besides splitting factor f >= 0.
constexpr int kIdle = -1;
constexpr int kPass = -2;
// Combinations of axis choices tried together; beyond that the axes are chosen one after another.
constexpr int kMaxCombinations = 1024;
// Ops that a pending sum is followed through to see where it is smallest.
constexpr int kChainLength = 16;

struct AxisChoices {
  std::vector<int> options;  // kIdle first: of equal costs the earlier option is taken, so sums are
                             // reduced early
  int8_t pass_code = 0;
  uint32_t pass_operands = 0;
};

class Solver {
 public:
  explicit Solver(const Problem& problem) : problem_(problem), program_(*problem.program) {
    solution_.splits.resize(program_.ops.size());
    solution_.placements.resize(program_.values.size());
    available_.resize(program_.values.size());
  }

  Solution Run() {
    for (const program::Port& p : program_.inputs) Produce(p.value, problem_.hints[p.value]);
    for (const program::State& s : program_.states) Produce(s.entry, problem_.hints[s.entry]);
    for (size_t i = 0; i < program_.ops.size(); ++i) SolveOp(static_cast<int>(i));
    for (const End& end : problem_.ends) Deliver(end);
    return std::move(solution_);
  }

 private:
  void Produce(ValueId v, const Placement& placement) {
    solution_.placements[v] = placement;
    available_[v].push_back(placement);
  }

  void SolveOp(int index) {
    const Op& op = program_.ops[index];
    const OpInfo& info = problem_.ops[index];
    Split& split = solution_.splits[index];
    if (problem_.fixed[op.results[0]]) {
      split = SplitFor(info.table, problem_.hints[op.results[0]]);
    } else {
      split = Cheapest(op, info);
    }
    solution_.seconds += SecondsOf(op, info, split);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Bring(op.operands[i], OperandPlacement(info.table, split, static_cast<int>(i)));
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      Produce(op.results[r], ResultPlacement(info.table, split, static_cast<int>(r)));
    }
  }

  // From now on the value is there in that layout too.
  void Bring(ValueId v, const Placement& want) {
    auto& have = available_[v];
    if (std::find(have.begin(), have.end(), want) == have.end()) have.push_back(want);
  }

  void Deliver(const End& end) {
    Placement want = end.want.value_or(solution_.placements[end.value]);
    for (int a = 0; a < kMaxAxes; ++a) {
      if (want.pending(a)) want.Clear(a);
    }
    solution_.seconds += SecondsToBring(end.value, want);
    Bring(end.value, want);
  }

  // The split that gives result 0 this layout.
  Split SplitFor(const FactorTable& table, const Placement& placement) {
    Split split;
    split.factors.resize(table.factors.size());
    for (size_t d = 0; d < table.results[0].size(); ++d) {
      const DimFactors& dim = table.results[0][d];
      if (dim.empty()) continue;
      AxesToFactors(dim, table, placement.AxesOf(static_cast<int>(d)), problem_.reshard.sizes,
                    parts_);
      for (size_t k = 0; k < dim.size(); ++k) split.factors[dim[k]] = parts_[k];
    }
    return split;
  }

  Split Cheapest(const Op& op, const OpInfo& info) {
    const int num_axes = problem_.reshard.sizes.count;
    std::vector<AxisChoices> axes(num_axes);
    int64_t combinations = 1;
    for (int a = 0; a < num_axes; ++a) {
      axes[a] = ChoicesOf(op, info, a);
      combinations = std::min<int64_t>(combinations * static_cast<int64_t>(axes[a].options.size()),
                                       kMaxCombinations + 1);
    }
    std::vector<int> chosen(num_axes);
    for (int a = 0; a < num_axes; ++a) chosen[a] = axes[a].options[0];
    Split split;
    if (combinations == 1) {
      MT_CHECK(MakeSplit(op, info, axes, chosen, split));
      return split;
    }
    std::vector<int> best = chosen;
    double best_cost = kInfinite;
    const auto consider = [&](const std::vector<int>& choice) {
      if (!MakeSplit(op, info, axes, choice, split)) return;
      const double cost = CostOfSplit(op, info, split);
      if (cost < best_cost * (1 - 1e-9)) {
        best_cost = cost;
        best = choice;
      }
    };
    if (combinations <= kMaxCombinations) {
      std::vector<size_t> at(num_axes, 0);
      for (;;) {
        for (int a = 0; a < num_axes; ++a) chosen[a] = axes[a].options[at[a]];
        consider(chosen);
        int a = 0;
        while (a < num_axes && ++at[a] == axes[a].options.size()) at[a++] = 0;
        if (a == num_axes) break;
      }
    } else {
      for (int a = 0; a < num_axes; ++a) {
        for (const int option : axes[a].options) {
          chosen = best;
          chosen[a] = option;
          consider(chosen);
        }
      }
    }
    MT_CHECK(MakeSplit(op, info, axes, best, split));
    return split;
  }

  AxisChoices ChoicesOf(const Op& op, const OpInfo& info, int axis) {
    AxisChoices choices;
    choices.options.push_back(kIdle);
    if (problem_.reshard.sizes.size[axis] == 1) return choices;
    const auto offer = [&](const std::vector<DimFactors>& dims, const Placement& placement) {
      if (placement.at[axis] < 0) return;
      for (const int f : dims[placement.at[axis]]) {
        if (!Splittable(info.table.factors[f])) continue;
        if (std::find(choices.options.begin(), choices.options.end(), f) == choices.options.end()) {
          choices.options.push_back(f);
        }
      }
    };
    bool pending = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      for (const Placement& placement : available_[op.operands[i]])
        offer(info.table.operands[i], placement);
      pending = pending || solution_.placements[op.operands[i]].pending(axis);
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      offer(info.table.results[r], problem_.hints[op.results[r]]);
    }
    if (pending && MayPass(op, info, axis, choices)) {
      if (info.widens) choices.options.clear();
      choices.options.push_back(kPass);
    }
    return choices;
  }

  // A pending reduction may go through when the op is linear in the operands that are pending
  // alike, and nobody else waits for the reduced value (it would be reduced twice).
  bool MayPass(const Op& op, const OpInfo& info, int axis, AxisChoices& choices) {
    int8_t code = 0;
    uint32_t pending = 0;
    uint32_t joint = 0;
    if (op.operands.size() > 32) return false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      const int8_t here = solution_.placements[v].at[axis];
      if (here > Placement::kPendingSum) continue;
      if (code != 0 && here != code) return false;
      if (problem_.uses[v] != 1) return false;
      code = here;
      pending |= 1u << i;
    }
    const mesh::Reduction reduction = Placement::ReductionOf(code);
    bool alone = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Linearity linearity = PassingOf(info, static_cast<int>(i), reduction);
      if (linearity == Linearity::kJoint) joint |= 1u << i;
      if (!(pending >> i & 1)) continue;
      if (linearity == Linearity::kNone) return false;
      alone = alone || linearity == Linearity::kAlone;
    }
    if (alone ? (pending & (pending - 1)) != 0 : pending != joint) return false;
    choices.pass_code = code;
    choices.pass_operands = pending;
    return true;
  }

  // False when the choices do not go together.
  bool MakeSplit(const Op& op, const OpInfo& info, const std::vector<AxisChoices>& axes,
                 const std::vector<int>& chosen, Split& split) {
    split.factors.assign(info.table.factors.size(), {});
    split.passing = Placement();
    split.passing_operands = 0;
    for (size_t a = 0; a < chosen.size(); ++a) {
      if (chosen[a] >= 0) {
        split.factors[chosen[a]].Add(static_cast<int>(a));
      } else if (chosen[a] == kPass) {
        if (split.Passes() && split.passing_operands != axes[a].pass_operands) return false;
        split.passing_operands = axes[a].pass_operands;
        split.passing.at[a] = axes[a].pass_code;
      }
    }
    for (size_t f = 0; f < split.factors.size(); ++f) {
      if (split.factors[f].count > 1) OrderAs(op, info, static_cast<int>(f), split.factors[f]);
    }
    if (!Representable(info.table, split, problem_.reshard.sizes)) return false;
    return !problem_.refuse_uneven || IsEven(op, info, split);
  }

  bool IsEven(const Op& op, const OpInfo& info, const Split& split) const {
    for (size_t f = 0; f < split.factors.size(); ++f) {
      if (info.table.factors[f].size % problem_.reshard.sizes.Product(split.factors[f]) != 0) {
        return false;
      }
    }
    // The other end of a window has its own number.
    for (const program::WindowedDim& d : info.table.windowed) {
      const auto& values = d.result ? op.results : op.operands;
      const int64_t size = problem_.dims(values[d.tensor])[d.dim];
      const AxisList& axes = split.factors[info.table.windows[d.window].factor];
      if (size % problem_.reshard.sizes.Product(axes) != 0) return false;
    }
    return true;
  }

  // Several axes on one factor stand in the order in which the largest tensor that has them all
  // already holds them.
  void OrderAs(const Op& op, const OpInfo& info, int factor, AxisList& axes) {
    int64_t most = -1;
    AxisList order = axes;
    const auto look = [&](ValueId v, const std::vector<DimFactors>& dims,
                          const Placement& placement) {
      const int64_t bytes = program_.type(v).num_bytes();
      if (bytes <= most) return;
      for (size_t d = 0; d < dims.size(); ++d) {
        if (std::find(dims[d].begin(), dims[d].end(), factor) == dims[d].end()) continue;
        AxisList found;
        for (const int a : placement.AxesOf(static_cast<int>(d))) {
          if (axes.Has(a)) found.Add(a);
        }
        if (found.count != axes.count) continue;
        most = bytes;
        order = found;
      }
    };
    for (size_t i = 0; i < op.operands.size(); ++i) {
      look(op.operands[i], info.table.operands[i], solution_.placements[op.operands[i]]);
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      look(op.results[r], info.table.results[r], problem_.hints[op.results[r]]);
    }
    axes = order;
  }

  // Of the step as it goes on: what the op takes, and what its results will cost to bring on.
  double CostOfSplit(const Op& op, const OpInfo& info, const Split& split) {
    double seconds = SecondsOf(op, info, split);
    for (size_t r = 0; r < op.results.size(); ++r) {
      seconds += Afterwards(op.results[r], ResultPlacement(info.table, split, static_cast<int>(r)));
    }
    return seconds;
  }

  // Of the cheapest way from a layout that there is.
  double SecondsToBring(ValueId v, const Placement& want, const GatherLimit& limit = {}) const {
    double seconds = kInfinite;
    for (const Placement& have : available_[v]) {
      seconds =
          std::min(seconds, ReshardSeconds(have, want, problem_.dims(v), problem_.element_bytes(v),
                                           problem_.reshard, limit));
      if (seconds == 0) break;
    }
    return seconds;
  }

  // What the operands cost to bring, and the work.
  double SecondsOf(const Op& op, const OpInfo& info, const Split& split) const {
    const AxisSizes& sizes = problem_.reshard.sizes;
    const CostModel& cost = problem_.reshard.cost;
    double seconds = 0;
    double bytes = 0;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      const Placement want = OperandPlacement(info.table, split, static_cast<int>(i));
      const GatherLimit limit =
          LimitFor(op, split, problem_.of_states[v], problem_.replication_limit_bytes);
      const std::vector<BlocksWanted> blocks =
          WantedOf(info.table, split, static_cast<int>(i), sizes);
      if (blocks.empty()) {
        seconds += SecondsToBring(v, want, limit);
      } else {
        seconds += Reachable(v, want)
                       ? PlanBlocks(available_[v], want, blocks, problem_.dims(v),
                                    problem_.element_bytes(v), problem_.reshard, limit)
                             .seconds
                       : kInfinite;
      }
      bytes += static_cast<double>(LocalElements(want, problem_.dims(v), sizes) *
                                   problem_.element_bytes(v));
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId v = op.results[r];
      const Placement placement = ResultPlacement(info.table, split, static_cast<int>(r));
      bytes += static_cast<double>(LocalElements(placement, problem_.dims(v), sizes) *
                                   problem_.element_bytes(v));
    }
    double part = 1;
    for (size_t f = 0; f < split.factors.size(); ++f) {
      if (split.factors[f].empty() || info.table.factors[f].size == 0) continue;
      const auto size = static_cast<double>(info.table.factors[f].size);
      part *= static_cast<double>(
                  CeilDiv(info.table.factors[f].size, sizes.Product(split.factors[f]))) /
              size;
    }
    return seconds + info.cost.flops * part / cost.flops_per_second +
           bytes / cost.memory_bytes_per_second;
  }

  bool Reachable(ValueId v, const Placement& want) const {
    return std::any_of(available_[v].begin(), available_[v].end(), [&](const Placement& have) {
      return PlanReshard(have, want, problem_.dims(v), problem_.element_bytes(v), problem_.reshard)
          .possible;
    });
  }

  // What it will cost to bring a value that was left at `placement` to where its users want it.
  double Afterwards(ValueId v, const Placement& placement) {
    const Placement& hint = problem_.hints[v];
    const bool pending = placement.AnyPending();
    bool as_hinted = true;
    for (int a = 0; a < problem_.reshard.sizes.count; ++a) {
      as_hinted = as_hinted && (hint.at[a] < 0 || hint.at[a] == placement.at[a]);
    }
    if (as_hinted && !pending) return 0;
    Placement target = hint;
    if (as_hinted) {
      target = placement;
      for (int a = 0; a < kMaxAxes; ++a) {
        if (target.pending(a)) target.Clear(a);
      }
    }
    const double least = pending ? SmallestOnTheWay(v) : 1;
    // Behind a cast to a wider type each element has more bytes.
    const auto element_bytes = static_cast<int64_t>(
        std::ceil(static_cast<double>(problem_.element_bytes(v)) * std::max(1.0, least)));
    return std::min(1.0, least) *
           ReshardSeconds(placement, target, problem_.dims(v), element_bytes, problem_.reshard);
  }

  // A pending value whose only user is linear may be reduced after it: the smallest size on that
  // way, relative to v's. Above 1 where it must be reduced behind a cast to a wider type.
  double SmallestOnTheWay(ValueId v) const {
    const auto whole = static_cast<double>(std::max<int64_t>(1, program_.type(v).num_bytes()));
    double smallest = whole;
    for (int steps = 0; steps < kChainLength; ++steps) {
      if (problem_.uses[v] != 1 || problem_.user[v] < 0) break;
      const Op& op = program_.ops[problem_.user[v]];
      if (op.results.size() != 1 || problem_.fixed[op.results[0]]) break;
      const auto at = std::find(op.operands.begin(), op.operands.end(), v) - op.operands.begin();
      const OpInfo& info = problem_.ops[problem_.user[v]];
      const Linearity linearity = PassingOf(info, static_cast<int>(at), mesh::Reduction::kSum);
      // Whether the other operands of a joint op will be pending alike is not known here.
      const bool alone = linearity == Linearity::kAlone ||
                         (linearity == Linearity::kJoint && op.operands.size() == 1);
      if (!alone) break;
      v = op.results[0];
      const auto bytes = static_cast<double>(program_.type(v).num_bytes());
      smallest = info.widens ? bytes : std::min(smallest, bytes);
    }
    return smallest / whole;
  }

  const Problem& problem_;
  const Program& program_;
  Solution solution_;
  std::vector<std::vector<Placement>>
      available_;  // per value: the layouts it will exist in so far, the first as produced
  std::vector<AxisList> parts_;
};

}  // namespace

Linearity PassingOf(const OpInfo& info, int operand, mesh::Reduction reduction) {
  if (info.def->moves_data && info.def->linearity.empty()) return Linearity::kJoint;
  if (reduction != mesh::Reduction::kSum && !info.def->moves_data) return Linearity::kNone;
  return info.linearity[operand];
}

Solution Solve(const Problem& problem) { return Solver(problem).Run(); }

}  // namespace meshtrain::sharding
