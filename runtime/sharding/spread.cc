// Forward and backward propagation of layouts through factors, to a fixpoint.
#include <algorithm>

#include "runtime/sharding/solve.h"

namespace meshtrain::sharding {
namespace {

using program::DimFactors;
using program::FactorTable;

bool IsPrefix(const AxisList& shorter, const AxisList& longer) {
  return shorter.count <= longer.count &&
         std::equal(shorter.begin(), shorter.end(), longer.begin());
}

class Spreader {
 public:
  explicit Spreader(Problem& problem) : problem_(problem) {}

  bool Forward(int op) {
    if (!Collect(op)) return false;
    bool changed = false;
    for (size_t r = 0; r < Op(op).results.size(); ++r) {
      changed |= Extend(Op(op).results[r], problem_.ops[op].table.results[r]);
    }
    return changed;
  }

  bool Backward(int op) {
    if (!Collect(op)) return false;
    bool changed = false;
    for (size_t i = 0; i < Op(op).operands.size(); ++i) {
      changed |= Extend(Op(op).operands[i], problem_.ops[op].table.operands[i]);
    }
    return changed;
  }

 private:
  const program::Op& Op(int op) const { return problem_.program->ops[op]; }

  // The axes that the op's tensors together propose for each factor; false when there are none.
  // Where two tensors disagree, the larger one has its way; where one axis is proposed for two
  // factors, the one that stays in the result.
  bool Collect(int op) {
    const FactorTable& table = problem_.ops[op].table;
    split_.factors.assign(table.factors.size(), {});
    weights_.assign(table.factors.size(), 0);
    bool any = false;
    const auto add = [&](const std::vector<ValueId>& values,
                         const std::vector<std::vector<DimFactors>>& tensors) {
      for (size_t t = 0; t < values.size(); ++t) {
        const Placement& hint = problem_.hints[values[t]];
        if (!hint.AnySplit()) continue;
        any = true;
        const int64_t weight = problem_.program->type(values[t]).num_bytes();
        for (size_t d = 0; d < tensors[t].size(); ++d) {
          const AxisList axes = hint.AxesOf(static_cast<int>(d));
          if (axes.empty() || tensors[t][d].empty()) continue;
          AxesToFactors(tensors[t][d], table, axes, problem_.reshard.sizes, parts_);
          for (size_t k = 0; k < parts_.size(); ++k) Propose(tensors[t][d][k], parts_[k], weight);
        }
      }
    };
    add(Op(op).operands, table.operands);
    add(Op(op).results, table.results);
    if (!any) return false;

    for (size_t f = 0; f < table.factors.size(); ++f) {
      if (!Splittable(table.factors[f])) split_.factors[f] = {};
    }
    for (int a = 0; a < problem_.reshard.sizes.count; ++a) ResolveAxis(table, a);
    // A list that one tensor allows may not fit where another one holds the factor beside others.
    if (!Representable(table, split_, problem_.reshard.sizes)) {
      Split alone;
      for (size_t f = 0; f < table.factors.size(); ++f) {
        alone.factors.assign(table.factors.size(), {});
        alone.factors[f] = split_.factors[f];
        if (!Representable(table, alone, problem_.reshard.sizes)) split_.factors[f] = {};
      }
      if (!Representable(table, split_, problem_.reshard.sizes)) return false;
    }
    return true;
  }

  void Propose(int factor, const AxisList& axes, int64_t weight) {
    AxisList& best = split_.factors[factor];
    if (axes.empty()) return;
    if (IsPrefix(axes, best)) return;
    if (!IsPrefix(best, axes) && weights_[factor] >= weight) return;
    best = axes;
    weights_[factor] = weight;
  }

  void ResolveAxis(const FactorTable& table, int axis) {
    int winner = -1;
    for (int f = 0; f < static_cast<int>(split_.factors.size()); ++f) {
      if (!split_.factors[f].Has(axis)) continue;
      if (winner >= 0) {
        const bool winner_stays = !Reduces(table.factors[winner]);
        const bool stays = !Reduces(table.factors[f]);
        const bool better = stays != winner_stays ? stays : weights_[f] > weights_[winner];
        Truncate(better ? winner : f, axis);
        if (!better) continue;
      }
      winner = f;
    }
  }

  // Drops `axis` and what is faster than it.
  void Truncate(int factor, int axis) {
    AxisList& axes = split_.factors[factor];
    int8_t keep = 0;
    while (axes.axis[keep] != axis) ++keep;
    axes.count = keep;
  }

  bool Extend(ValueId v, const std::vector<DimFactors>& dims) {
    if (problem_.fixed[v]) return false;
    Placement& hint = problem_.hints[v];
    bool changed = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      AxisList want;
      for (const int f : dims[d]) {
        for (const int axis : split_.factors[f]) want.Add(axis);
      }
      if (want.empty()) continue;
      const AxisList have = hint.AxesOf(static_cast<int>(d));
      if (have.count >= want.count || !IsPrefix(have, want)) continue;
      for (int i = have.count; i < want.count; ++i) {
        const int axis = want.axis[i];
        if (hint.at[axis] != Placement::kCopies) break;
        if (problem_.refuse_uneven) {
          Placement more = hint;
          more.Append(static_cast<int>(d), axis);
          if (!EvenDim(more, static_cast<int>(d), problem_.dims(v)[d], problem_.reshard.sizes)) {
            break;
          }
        }
        hint.Append(static_cast<int>(d), axis);
        changed = true;
      }
    }
    return changed;
  }

  Problem& problem_;
  Split split_;
  std::vector<int64_t> weights_;
  std::vector<AxisList> parts_;
};

}  // namespace

void SpreadHints(Problem& problem) {
  Spreader spreader(problem);
  const int num_ops = static_cast<int>(problem.ops.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (int i = 0; i < num_ops; ++i) changed |= spreader.Forward(i);
    for (int i = num_ops - 1; i >= 0; --i) changed |= spreader.Backward(i);
  }
}

}  // namespace meshtrain::sharding
