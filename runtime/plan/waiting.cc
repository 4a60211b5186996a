#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/plan/internal.h"
#include "runtime/program/registry.h"

namespace meshtrain::plan {
namespace {

using program::Op;
using program::Program;

// A gradient of an activation takes two or three ops.
constexpr size_t kMostWaiting = 4;

class Waiting {
 public:
  Waiting(const Program& local, const std::vector<bool>& chained)
      : local_(local), chained_(chained), at_(local.ops.size(), 0), level_(local.ops.size(), 0) {
    readers_.resize(local.values.size());
    kept_.resize(local.values.size(), false);
    for (const program::Port& p : local.outputs) kept_[p.value] = true;
    for (const program::State& s : local.states) kept_[s.exit] = true;
    for (size_t i = 0; i < local.ops.size(); ++i) {
      for (const ValueId v : local.ops[i].operands) {
        readers_[v].push_back(static_cast<int>(i));
        const int producer = local.values[v].op;
        if (producer < 0) continue;
        // A sum of columns is in a chain, and what reads it is not.
        const bool together = chained[producer] && chained[i] &&
                              FoldedBy(local, local.ops[producer]).kind != Folded::kColumns;
        level_[i] = std::max(level_[i], level_[producer] + (together ? 0 : 1));
      }
    }
    at_ = level_;
  }

  Computed Find() && {
    std::vector<bool> waits(local_.ops.size(), false);
    for (int i = static_cast<int>(local_.ops.size()) - 1; i >= 0; --i) {
      const std::optional<ValueId> first = OnlyOperand(i);
      const ValueId made = local_.ops[i].results[0];
      if (!first || kept_[made] || readers_[made].empty()) continue;
      int level = at_[readers_[made][0]];
      for (const int r : readers_[made]) level = std::min(level, at_[r]);
      if (level <= level_[i]) continue;
      // Down to a value that is kept.
      std::vector<int> ops = {i};
      std::optional<ValueId> from = first;
      while (from && !IsKept(*from, ops.back())) {
        const int producer = local_.values[*from].op;
        const bool alone = readers_[*from].size() == 1 && ops.size() < kMostWaiting;
        from = alone ? OnlyOperand(producer) : std::nullopt;
        ops.push_back(producer);
      }
      if (!from || local_.type(*from).num_bytes() > local_.type(made).num_bytes()) continue;
      for (const int op : ops) {
        waits[op] = true;
        at_[op] = level;
      }
    }
    return {std::move(at_), std::move(waits)};
  }

 private:
  // The one operand of more than one element, which a chain makes; none where there are several, or
  // where the op is of no chain or its result not alike.
  std::optional<ValueId> OnlyOperand(int i) const {
    const Op& op = local_.ops[i];
    const program::OpDef* def = program::Registry::Standard().Find(op.kind);
    if (!chained_[i] || !def->elementwise) return std::nullopt;
    std::optional<ValueId> only;
    for (const ValueId v : op.operands) {
      if (local_.type(v).num_elements() == 1 || v == only) continue;
      if (only || local_.type(v).dims != local_.type(op.results[0]).dims) return std::nullopt;
      only = v;
    }
    if (!only) return std::nullopt;
    const int producer = local_.values[*only].op;
    return producer >= 0 && chained_[producer] ? only : std::nullopt;
  }

  // Whether `v` is in memory whether or not `reader` is in the chain that makes it.
  bool IsKept(ValueId v, int reader) const {
    const int made = level_[local_.values[v].op];
    return kept_[v] || std::any_of(readers_[v].begin(), readers_[v].end(),
                                   [&](int r) { return r != reader && at_[r] > made; });
  }

  const Program& local_;
  const std::vector<bool>& chained_;
  std::vector<int> at_;  // the level at which each op is computed: level_, or its readers'
  std::vector<int>
      level_;  // how many ops that are in no chain stand before it, one behind the other
  std::vector<std::vector<int>> readers_;  // per value
  std::vector<bool> kept_;                 // per value: an output, or a state's next
};

}  // namespace

Computed WaitsForReaders(const Program& local, const std::vector<bool>& chained) {
  return Waiting(local, chained).Find();
}

}  // namespace meshtrain::plan
