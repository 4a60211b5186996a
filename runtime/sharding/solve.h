// The inside of Propagate, in three steps over one Problem:
//   MakeProblem   factor tables looked up
//   GiveHints     given layouts checked, and spread forward and backward through factors, to a
//                 fixpoint
//   Solve         op by op, the cheapest split: what the operands cost to bring, the work itself,
//                 what the results will cost to bring to where their users want them
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/sharding/factors.h"
#include "runtime/sharding/reshard.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

struct OpInfo {
  const program::OpDef* def = nullptr;
  program::FactorTable table;
  program::Cost cost;                         // of the whole op
  std::vector<program::Linearity> linearity;  // per operand, of this call
  // Gives floats of 16 bits as they are in a wider type: a sum of them that may pass is reduced
  // behind it, whatever that costs, so that it is not added up in 16 bits.
  bool widens = false;
};

// Where a value has to be when the step is over; none: where its producer leaves it, reduced.
struct End {
  ValueId value;
  std::optional<Placement> want;
};

struct Problem {
  const Program* program = nullptr;
  const Mesh* mesh = nullptr;
  ReshardContext reshard;
  bool refuse_uneven = false;
  int64_t replication_limit_bytes = 0;

  std::vector<OpInfo> ops;
  std::vector<End> ends;  // outputs, and states as the step leaves them
  // Per value: which axes should split it, as far as something given says so. Nothing is ever
  // pending here, except in inputs that are fed so.
  std::vector<Placement> hints;
  // Per value: the hint is the layout itself (inputs, entering states, results of relayout).
  std::vector<char> fixed;
  // Per value: how many ops use it; outputs and states as they are left count as one each.
  std::vector<int> uses;
  // Per value: one op that uses it, -1: none.
  std::vector<int> user;
  std::vector<bool> of_states;  // per value: lint.h's OfStates

  std::span<const int64_t> dims(ValueId v) const { return program->values[v].type.dims; }
  int64_t element_bytes(ValueId v) const { return mesh::DTypeBytes(program->values[v].type.dtype); }
};

// Fills in everything but what follows from given layouts. Errors: kInvalidArgument for an op that
// does not exist.
Result<Problem> MakeProblem(const Program& program, const Mesh& mesh, const Options& options);

// Fills in hints, fixed and ends, whatever they were. `follow`: states whose layouts, given or not,
// may take further axes from their neighbours; null: none. Errors: kInvalidArgument for a layout
// that does not fit.
Status GiveHints(Problem& problem, const Given& given, const Options& options,
                 const std::set<std::string>* follow = nullptr);

// Per op: a layout splits a dimension that the op needs whole, and its row has an expansion. Empty
// where that is true of none.
std::vector<bool> ToExpand(const Problem& problem);

// Values that are not fixed get axes from their neighbours; axes are only ever added, so this ends.
void SpreadHints(Problem& problem);

struct Solution {
  std::vector<Split> splits;          // per op
  std::vector<Placement> placements;  // per value, as its producer leaves it
  // One device's part of the work, and what is moved for it, up to the ends; kRefused for what
  // Partition would refuse. The masks and cuts that Partition adds are not in it.
  double seconds = 0;
};
Solution Solve(const Problem& problem);

// How the op treats a pending reduction of this kind in operand i (registry.h; moved data passes
// any).
program::Linearity PassingOf(const OpInfo& info, int operand, mesh::Reduction reduction);

}  // namespace meshtrain::sharding
