#include <algorithm>
#include <set>

#include "runtime/base/check.h"
#include "runtime/plan/internal.h"
#include "runtime/plan/step_graph.h"
#include "runtime/program/again.h"
#include "runtime/program/parts.h"
#include "runtime/program/registry.h"

namespace meshtrain::plan {
namespace {

using program::Dims;
using program::Op;
using program::OpDef;
using program::Program;

// Longer chains gain nothing, and a block of each of their values is to fit near the processor.
constexpr size_t kMostOpsInAChain = 32;

// Which ops run before which although no value passes between them: `guards` before each op that
// makes a state's next value, unless a guard needs that op itself; with `recorded_order` every
// collective after the one recorded before it.
std::vector<std::vector<int>> OrderBeyondValues(const Program& local,
                                                const std::vector<int>& guards,
                                                bool recorded_order) {
  std::vector<std::vector<int>> after(local.ops.size());
  if (recorded_order) {
    int previous = -1;
    for (int i = 0; i < static_cast<int>(local.ops.size()); ++i) {
      if (!Communicates(local.ops[i])) continue;
      if (previous >= 0) after[i].push_back(previous);
      previous = i;
    }
  }
  std::vector<bool> needed(local.ops.size(), false);  // by a guard
  for (const int g : guards) needed[g] = true;
  for (size_t i = local.ops.size(); i-- > 0;) {
    if (!needed[i]) continue;
    for (const ValueId v : local.ops[i].operands) {
      if (local.values[v].op >= 0) needed[local.values[v].op] = true;
    }
    for (const int before : after[i]) needed[before] = true;
  }
  for (const program::State& s : local.states) {
    const int producer = local.values[s.exit].op;
    if (s.exit == s.entry || producer < 0 || needed[producer]) continue;
    after[producer].insert(after[producer].end(), guards.begin(), guards.end());
  }
  return after;
}

bool IsScalarConstant(const Program& local, const Op& op) {
  return op.kind == "constant" && local.type(op.results[0]).num_elements() == 1;
}

bool CanFuse(const Program& local, const Op& op, const OpDef& def) {
  // To a chain a value that is stretched is an operand that is broadcast.
  if (!(def.elementwise || op.kind == "broadcast_to") || op.results.size() != 1) return false;
  const Dims& domain = local.type(op.results[0]).dims;
  return std::all_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
    return SpreadOf(local.type(v).dims, domain) != Spread::kOther;
  });
}

// FoldedBy where it makes one element of enough for a chain.
Folded FoldedInChain(const Program& local, const Op& op, int64_t fewest_folded) {
  const Folded folded = FoldedBy(local, op);
  return fewest_folded > 0 && folded.count >= fewest_folded ? folded : Folded{};
}

// What an op is to its chain: a value of the whole index space, a fold of its rows, a value for
// each row, or a sum of its columns, which is there when the chain has ended.
enum class Role : uint8_t { kNone, kWhole, kFold, kRow, kSum };

// A chain while it grows.
struct Growing {
  Dims whole;         // the index space
  int64_t row = 0;    // elements of it that a fold of the chain makes one of; 0: no row is folded
  bool sums = false;  // columns

  int64_t rows() const { return row == 0 ? 0 : mesh::NumElements(whole) / row; }
  bool Fits(const Growing& other) const {
    return whole == other.whole && (row == 0 || other.row == 0 || row == other.row);
  }
};

// Whether two nodes may be one chain for what their ops read of what it folds: a value that has an
// element for each row is there row by row, and so cannot be read along a row; a sum of columns is
// not there at all.
bool ReadInTime(const Program& local, const StepGraph& graph, const std::vector<Role>& role,
                int one, int other) {
  for (const int node : {one, other}) {
    for (const int i : graph.Ops(node)) {
      const Op& op = local.ops[i];
      for (const ValueId v : op.operands) {
        const int producer = local.values[v].op;
        if (producer < 0 || role[producer] == Role::kNone || role[producer] == Role::kWhole) {
          continue;
        }
        const int from = graph.NodeOf(producer);
        if (from != one && from != other) continue;
        if (role[producer] == Role::kSum) return false;
        if (op.kind != "reshape" &&
            SpreadOf(local.type(v).dims, local.type(op.results[0]).dims) == Spread::kRow) {
          return false;
        }
      }
    }
  }
  return true;
}

// What `op` is in the chain that it begins or joins: `join(producer)` makes it one with the chain
// of an operand's producer, if it may. The ops before it have their roles.
template <typename Join>
Role Enlist(const Program& local, const OpDef& def, const Op& op, const std::vector<Role>& role,
            const StepGraph& graph, int64_t fewest_folded, std::vector<Growing>* chains,
            const Join& join) {
  const int self = static_cast<int>(&op - local.ops.data());
  const auto chain_of = [&](int o) -> Growing& { return (*chains)[graph.NodeOf(o)]; };
  // The operands that a chain makes, and what they are to it.
  const auto for_each_made = [&](const auto& visit) {
    for (const ValueId v : op.operands) {
      const int producer = local.values[v].op;
      if (producer >= 0 && role[producer] != Role::kNone && role[producer] != Role::kSum) {
        visit(v, producer);
      }
    }
  };
  const auto of_a_row = [&](int o) { return role[o] == Role::kFold || role[o] == Role::kRow; };
  const auto joins_fitting = [&](const auto& is_wanted) {
    bool joined = false;
    for_each_made([&](ValueId v, int producer) {
      if (is_wanted(v, producer) && chain_of(self).Fits(chain_of(producer))) {
        joined = join(producer) || joined;
      }
    });
    return joined;
  };
  if (const Folded folded = FoldedInChain(local, op, fewest_folded);
      folded.kind != Folded::kNothing) {
    const bool sums = folded.kind == Folded::kColumns;
    chain_of(self) = {local.type(op.operands[0]).dims, sums ? 0 : folded.count, sums};
    joins_fitting([&](ValueId, int producer) { return role[producer] == Role::kWhole; });
    return sums ? Role::kSum : Role::kFold;
  }
  const bool elementwise = CanFuse(local, op, def);
  if (!elementwise && op.kind != "reshape") return Role::kNone;
  const Dims& dims = local.type(op.results[0]).dims;
  const bool each_with_each = std::all_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
    const Spread spread = SpreadOf(local.type(v).dims, dims);
    return op.kind == "reshape" || spread == Spread::kFull || spread == Spread::kScalar;
  });
  if (each_with_each) {
    bool joined = false;
    for_each_made([&](ValueId, int producer) {
      const Growing chain = chain_of(producer);
      if (joined || !of_a_row(producer) || chain.rows() != mesh::NumElements(dims)) return;
      chain_of(self) = chain;
      joined = join(producer);
    });
    if (joined) {
      joins_fitting([&](ValueId, int producer) { return of_a_row(producer); });
      return Role::kRow;
    }
  }
  if (!elementwise) return Role::kNone;
  chain_of(self) = {dims, 0};
  joins_fitting([&](ValueId v, int producer) {
    return role[producer] == Role::kWhole || SpreadOf(local.type(v).dims, dims) == Spread::kColumn;
  });
  return Role::kWhole;
}

}  // namespace

Spread SpreadOf(const Dims& operand, const Dims& domain) {
  if (operand == domain) return Spread::kFull;
  if (mesh::NumElements(operand) == 1) return Spread::kScalar;
  if (operand.size() > domain.size()) return Spread::kOther;
  Dims padded(domain.size() - operand.size(), 1);
  padded.insert(padded.end(), operand.begin(), operand.end());
  size_t first = 0;
  while (first < padded.size() && padded[first] == 1) ++first;
  if (std::equal(padded.begin() + static_cast<int64_t>(first), padded.end(),
                 domain.begin() + static_cast<int64_t>(first))) {
    return Spread::kRow;
  }
  size_t last = padded.size();
  while (last > 0 && padded[last - 1] == 1) --last;
  if (std::equal(padded.begin(), padded.begin() + static_cast<int64_t>(last), domain.begin())) {
    return Spread::kColumn;
  }
  return Spread::kOther;
}

Folded FoldedBy(const Program& local, const Op& op) {
  // A chain takes whole rows at a time, and keeps the sums of so many columns at hand.
  constexpr int64_t kLongest = 2048;
  const bool sum = op.kind == "reduce_sum";
  if (!sum && op.kind != "reduce_max" && op.kind != "reduce_min") return {};
  const program::TensorType& type = local.type(op.operands[0]);
  if (type.dtype != mesh::DType::kF32 && type.dtype != mesh::DType::kF64) return {};
  std::vector<bool> folded(type.dims.size(), false);
  for (const int64_t axis : op.attrs.Ints("axes")) folded[axis] = true;
  // Runs of dimensions that are folded, and that are not, from the last one on.
  int64_t row = 1, rest = 1;
  int runs = 0;
  bool in_fold = false;
  for (size_t d = type.dims.size(); d-- > 0;) {
    if (type.dims[d] == 1) continue;
    if (runs == 0 || folded[d] != in_fold) ++runs;
    in_fold = folded[d];
    (in_fold ? row : rest) *= type.dims[d];
  }
  if (runs > 2 || row <= 1) return {};
  const bool leading = in_fold && runs == 2;
  if (!leading && row <= kLongest) return {Folded::kRows, row, 1};
  if (!sum || rest < 1 || rest > kLongest || (!leading && rest > 1)) return {};
  return {Folded::kColumns, row, rest};
}

std::vector<bool> Chained(const Program& local, const Options& options) {
  std::vector<bool> chained;
  for (const Op& op : local.ops) {
    const OpDef* def = program::Registry::Standard().Find(op.kind);
    MT_CHECK(def != nullptr);
    const bool folds = FoldedInChain(local, op, options.fewest_folded).kind != Folded::kNothing;
    chained.push_back(options.fuse && (folds || CanFuse(local, op, *def)));
  }
  return chained;
}

bool AtTheSameIndex(const Program& local, const Step& step, ValueId read, ValueId written) {
  if (step.kind != StepKind::kFused) return false;
  const program::TensorType &from = local.type(read), &to = local.type(written);
  const int64_t elements = to.num_elements();
  if (from.num_elements() != elements ||
      mesh::DTypeBytes(from.dtype) != mesh::DTypeBytes(to.dtype)) {
    return false;
  }
  // What a fold makes is smaller than what it folds, and is there row by row, or at the end.
  return std::none_of(step.ops.begin(), step.ops.end(), [&](int i) {
    const Op& op = local.ops[i];
    return FoldedBy(local, op).kind != Folded::kNothing &&
           local.type(op.operands[0]).num_elements() != elements;
  });
}

std::vector<Step> Schedule(const Program& local, const std::vector<bool>& waits,
                           const std::vector<ValueId>& guard_values, const Options& options) {
  const auto& registry = program::Registry::Standard();
  std::vector<int> guards;
  for (const ValueId v : guard_values) {
    if (local.values[v].op >= 0) guards.push_back(local.values[v].op);
  }
  StepGraph graph(local, OrderBeyondValues(local, guards, options.recorded_order));
  std::vector<Role> role(local.ops.size(), Role::kNone);
  std::vector<Growing> chains(local.ops.size());  // per node of the graph
  std::vector<int64_t> parts;
  std::vector<bool> again;
  for (const Op& op : local.ops) {
    parts.push_back(program::PartOf(op));
    again.push_back(program::IsAgain(op));
  }
  int last_bucket_op = -1;
  int64_t bucket_bytes = 0;
  const int64_t full = options.overlap
                           ? std::min(options.bucket_bytes, options.overlap_bucket_bytes)
                           : options.bucket_bytes;
  const auto bucket = [&](int index) {
    const Op& op = local.ops[index];
    if (op.kind != "all_reduce" || options.bucket_bytes <= 0) return;
    const program::TensorType& type = local.type(op.results[0]);
    const bool same = last_bucket_op >= 0 && local.ops[last_bucket_op].attrs == op.attrs &&
                      parts[last_bucket_op] == parts[index] &&
                      local.type(local.ops[last_bucket_op].results[0]).dtype == type.dtype;
    const bool has_room = bucket_bytes < full || type.rank() == 0;
    // What a bucket holds is sent at once, so nothing in it may need another's result.
    const auto needs = [&](int node) {
      const int producer = local.values[op.operands[0]].op;
      return producer >= 0 && graph.NodeOf(producer) == node;
    };
    if (same && has_room && !needs(graph.NodeOf(last_bucket_op)) &&
        graph.Merge(graph.NodeOf(last_bucket_op), graph.NodeOf(index))) {
      bucket_bytes += type.num_bytes();
    } else {
      last_bucket_op = index;
      bucket_bytes = type.num_bytes();
    }
  };
  if (options.recorded_order) {
    // Before any chain is made, since what fuses depends on dimensions.
    for (int i = 0; i < static_cast<int>(local.ops.size()); ++i) bucket(i);
  }
  for (size_t i = 0; i < local.ops.size(); ++i) {
    const Op& op = local.ops[i];
    const auto index = static_cast<int>(i);
    const OpDef* def = registry.Find(op.kind);
    const auto join = [&](int producer) {
      if (waits[index] && !waits[producer]) return false;
      if (parts[index] != 0 && parts[producer] != parts[index]) return false;
      // Beside what it repeats it would be computed too soon, and kept.
      if (again[index] && !again[producer]) return false;
      const int into = graph.NodeOf(producer);
      const int from = graph.NodeOf(index);
      if (into == from) return true;
      if (graph.Ops(into).size() + graph.Ops(from).size() > kMostOpsInAChain) return false;
      const int64_t row = std::max(chains[into].row, chains[from].row);
      const bool sums = chains[into].sums || chains[from].sums;
      if ((row > 0 || sums) && !ReadInTime(local, graph, role, into, from)) return false;
      if (!graph.Merge(into, from)) return false;
      chains[into].row = row;
      chains[into].sums = sums;
      return true;
    };
    if (options.fuse)
      role[i] = Enlist(local, *def, op, role, graph, options.fewest_folded, &chains, join);
    if (!options.recorded_order) bucket(index);
  }

  // Which values leave a step: those that another step, an output or an update wants.
  std::vector<bool> wanted(local.values.size(), false);
  for (const program::Port& p : local.outputs) wanted[p.value] = true;
  for (const program::State& s : local.states) wanted[s.exit] = true;
  std::vector<bool> read_by_op_step(local.values.size(), false);
  for (size_t i = 0; i < local.ops.size(); ++i) {
    for (const ValueId v : local.ops[i].operands) {
      const int producer = local.values[v].op;
      if (producer < 0 || graph.NodeOf(producer) != graph.NodeOf(static_cast<int>(i))) {
        wanted[v] = true;
      }
      if (role[i] == Role::kNone) read_by_op_step[v] = true;
    }
  }
  std::vector<bool> immediate(local.values.size(), false);
  for (const Op& op : local.ops) {
    if (IsScalarConstant(local, op) && options.fuse) {
      immediate[op.results[0]] = !read_by_op_step[op.results[0]];
    }
  }
  for (const program::Port& p : local.outputs) immediate[p.value] = false;
  for (const program::State& s : local.states) immediate[s.exit] = false;

  std::vector<Step> steps;
  for (const int node : graph.Order(options.overlap)) {
    Step step;
    step.ops = graph.Ops(node);
    const Op& first = local.ops[step.ops.front()];
    if (IsScalarConstant(local, first) && immediate[first.results[0]]) continue;
    const Role as = role[step.ops.front()];
    // A fold that found no other op is a step of its own, with its own loops.
    const bool fused =
        as != Role::kNone && !((as == Role::kFold || as == Role::kSum) && step.ops.size() == 1);
    step.kind = fused                 ? StepKind::kFused
                : Communicates(first) ? StepKind::kCollective
                                      : StepKind::kOp;
    std::set<ValueId> reads, made;
    for (const int i : step.ops) {
      for (const ValueId v : local.ops[i].operands) {
        if (!made.contains(v) && !immediate[v]) reads.insert(v);
      }
      made.insert(local.ops[i].results.begin(), local.ops[i].results.end());
    }
    step.reads.assign(reads.begin(), reads.end());
    for (const ValueId v : made) {
      if (wanted[v] || step.kind != StepKind::kFused) step.writes.push_back(v);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace meshtrain::plan
