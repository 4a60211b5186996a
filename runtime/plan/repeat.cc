#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/plan/internal.h"
#include "runtime/program/again.h"

namespace meshtrain::plan {
namespace {

using program::Op;
using program::Program;

constexpr size_t kMostOps = 3;  // that make one value again
// What is so many times smaller than the value that is repeated is read beside it at little cost.
constexpr int64_t kSmall = 4;

bool IsCheap(const Op& op) {
  static const std::set<std::string, std::less<>> kinds = {"add",    "sub",  "mul",
                                                           "square", "relu", "neg"};
  return kinds.contains(op.kind);
}

class Repeater {
 public:
  Repeater(sharding::Partitioned* program, const std::vector<bool>& chained, Computed computed,
           int64_t least_bytes)
      : program_(*program),
        chained_(chained),
        computed_(std::move(computed)),
        least_bytes_(least_bytes),
        readers_(local().Uses()),
        kept_(local().values.size(), false),
        makers_(local().values.size()) {
    for (const program::Port& p : local().outputs) kept_[p.value] = true;
    for (const program::State& s : local().states) {
      kept_[s.exit] = true;
      if (s.exit != s.entry) overwritten_.insert(s.entry);
    }
  }

  std::vector<bool> Run() && {
    bool any = false;
    for (int i = 0; i < static_cast<int>(local().ops.size()); ++i) {
      if (!IsRepeated(i)) continue;
      const ValueId made = local().ops[i].results[0];
      std::vector<int> ops;
      std::optional<ValueId> of;
      if (!MadeOf(made, made, &ops, &of) || !of) continue;
      for (const int op : ops) makers_[made].push_back(local().ops[op]);
      any = true;
    }
    if (any) Rewrite();
    return std::move(computed_.waits);
  }

 private:
  Program& local() { return program_.local; }
  const Program& local() const { return program_.local; }

  // Whether it makes a large value that its own chain reads, and others at later levels.
  bool IsRepeated(int i) const {
    const Op& op = local().ops[i];
    if (!chained_[i] || computed_.waits[i] || !IsCheap(op) || program::IsAgain(op)) return false;
    const ValueId made = op.results[0];
    if (kept_[made] || local().type(made).num_bytes() < least_bytes_) return false;
    bool here = false, later = false;
    for (const int r : readers_[made]) {
      if (!chained_[r] || program::IsAgain(local().ops[r])) return false;
      (computed_.level[r] > computed_.level[i] ? later : here) = true;
    }
    return here && later;
  }

  // Whether it is in memory whatever is repeated, and can stay for as long as anything reads it.
  bool IsInMemory(ValueId v) const {
    const int producer = local().values[v].op;
    if (producer < 0) return !overwritten_.contains(v);
    if (!chained_[producer] || kept_[v]) return true;
    if (computed_.waits[producer] || !makers_[v].empty()) return false;
    return std::any_of(readers_[v].begin(), readers_[v].end(), [&](int r) {
      return !chained_[r] || computed_.level[r] > computed_.level[producer];
    });
  }

  // The ops that make `v`, a part of `whole`, of one value that is in memory, `of`, and of small
  // ones; in order.
  bool MadeOf(ValueId v, ValueId whole, std::vector<int>* ops, std::optional<ValueId>* of) const {
    if (local().type(v).num_elements() * kSmall <= local().type(whole).num_elements()) return true;
    const int producer = local().values[v].op;
    if (v != whole && IsInMemory(v)) {
      if (local().type(v).num_bytes() > local().type(whole).num_bytes()) return false;
      const bool first = !*of;
      if (first) *of = v;
      return first || *of == v;
    }
    if (producer < 0) return false;
    const Op& op = local().ops[producer];
    if (std::find(ops->begin(), ops->end(), producer) != ops->end()) return true;
    if (ops->size() == kMostOps || !IsCheap(op) || computed_.waits[producer] ||
        program::IsAgain(op)) {
      return false;
    }
    for (const ValueId operand : op.operands) {
      if (!MadeOf(operand, whole, ops, of)) return false;
    }
    if (ops->size() == kMostOps) return false;
    ops->push_back(producer);
    return true;
  }

  void Rewrite() {
    std::vector<Op> before = std::exchange(local().ops, {});
    std::vector<bool> waits;
    std::vector<int> now;  // where each op stands
    // Per value and level: what stands for it there.
    std::map<std::pair<ValueId, int>, ValueId> repeated;
    const auto add = [&](Op op, bool waiting) {
      const auto index = static_cast<int>(local().ops.size());
      for (const ValueId v : op.results) local().values[v].op = index;
      local().ops.push_back(std::move(op));
      waits.push_back(waiting);
      return index;
    };
    std::vector<int> made_by(local().values.size());
    for (size_t v = 0; v < made_by.size(); ++v) made_by[v] = local().values[v].op;
    for (size_t i = 0; i < before.size(); ++i) {
      const int level = computed_.level[i];
      for (ValueId& v : before[i].operands) {
        if (makers_[v].empty() || level <= computed_.level[made_by[v]]) continue;
        const auto [it, missing] = repeated.try_emplace({v, level}, -1);
        if (missing) {
          std::map<ValueId, ValueId> twins;
          for (Op twin : makers_[v]) {
            for (ValueId& operand : twin.operands) {
              if (const auto known = twins.find(operand); known != twins.end()) {
                operand = known->second;
              }
            }
            it->second = twins[twin.results[0]] = Twin(twin.results[0]);
            twin.results[0] = it->second;
            add(std::move(twin), true);
          }
        }
        v = it->second;
      }
      now.push_back(add(std::move(before[i]), computed_.waits[i]));
    }
    for (sharding::Reshard& reshard : program_.reshards) {
      for (auto& op : reshard.ops) op = now[op];
    }
    computed_.waits = std::move(waits);
  }

  ValueId Twin(ValueId like) {
    const auto id = static_cast<ValueId>(local().values.size());
    local().values.push_back({program::TensorType(local().type(like)), -1});
    program_.layouts.push_back(mesh::Layout(program_.layouts[like]));
    program_.global_dims.push_back(program::Dims(program_.global_dims[like]));
    return id;
  }

  sharding::Partitioned& program_;
  const std::vector<bool>& chained_;
  Computed computed_;
  const int64_t least_bytes_;
  std::vector<std::vector<int>> readers_;  // per value
  std::vector<bool> kept_;                 // per value: an output, or a state's next
  std::set<ValueId> overwritten_;          // states as they were, which change in place
  std::vector<std::vector<Op>> makers_;    // per value: what makes those that are repeated
};

}  // namespace

std::vector<bool> RepeatForReaders(sharding::Partitioned* program, const std::vector<bool>& chained,
                                   Computed computed, const Options& options) {
  return Repeater(program, chained, std::move(computed), options.least_repeated).Run();
}

}  // namespace meshtrain::plan
