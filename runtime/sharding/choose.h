// Layouts for states that have none, by predicted time: what `layout: auto` of a manifest asks for.
// Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

// States of equal dimensions that take one layout: a weight and what its optimizer keeps for it,
// and the same of blocks that are alike.
using StateGroup = std::vector<std::string>;

// What one device spends on a step: its part of the work, and the collectives.
struct Spent {
  double seconds = 0;  // predicted
  double sent_bytes = 0;
  double flops = 0;
};
Spent PredictSpent(const Partitioned& partitioned, const CostModel& cost);

// One layout for each state of `open`, none of which is in `given.states`. Climbs from two
// beginnings: from all of them replicated, and from weights that are split by columns and rows in
// turn over the axes that no input uses. It takes, group by group and the largest first, whichever
// change makes the step of `program` fastest, until none does: a dimension that is split by one
// more axis or made whole, and beside it whatever of the others the axis comes to when it spreads
// from there. From columns and rows no change may cost bytes on the links or operations. The faster
// of both ends is taken, but the first not where it sends more bytes than columns and rows do. A
// local optimum, the same on every machine. Programs of very many groups are searched in part
// (kMostTried in the .cc). Errors: Propagate's, where not even the replicated states fit.
Result<std::map<std::string, Layout>> ChooseStateLayouts(const Program& program, const Mesh& mesh,
                                                         Given given,
                                                         std::span<const StateGroup> open,
                                                         const Options& options = {});

}  // namespace meshtrain::sharding
