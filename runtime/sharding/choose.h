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
double PredictSeconds(const Partitioned& partitioned, const CostModel& cost);

// One layout for each state of `open`, none of which is in `given.states`. Begins with all of them
// replicated and takes, group by group and the largest first, whichever change makes the step of
// `program` fastest, until none does: a dimension that is split by one more axis or made whole, and
// beside it whatever of the others the axis comes to when it spreads from there. A local optimum,
// the same on every machine. Programs of very many groups are searched in part (kMostTried in the
// .cc). Errors: Propagate's, where not even the replicated states fit.
Result<std::map<std::string, Layout>> ChooseStateLayouts(const Program& program, const Mesh& mesh,
                                                         Given given,
                                                         std::span<const StateGroup> open,
                                                         const Options& options = {});

}  // namespace meshtrain::sharding
