// How a value gets from one layout to another: the cheapest sequence of collectives and local cuts,
// found by a shortest path over the layouts between them.
//
// Uneven shards: joining the shards of some of a dimension's axes gives the chunks of the remaining
// axes only where ceil(D / (kept * joined)) * joined == ceil(D / kept), or where no axis is kept
// (then the join is cut to D). Other steps are not offered, and the search goes round by the whole
// dimension.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "runtime/sharding/placement.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

enum class MoveKind : uint8_t { kSlice, kAllGather, kReduceScatter, kAllReduce, kAllToAll };

struct Move {
  MoveKind kind = MoveKind::kSlice;
  AxisList axes;     // the group, slowest first
  int dim = 0;       // slice, gather, scatter: the dimension; all_to_all: the one that gets split
  int from_dim = 0;  // all_to_all: the one that gets joined
  mesh::Reduction reduction = mesh::Reduction::kSum;
  Placement after;
  int64_t bytes = 0;  // sent by one device
  int64_t held = 0;   // bytes of the value that one device has behind it
  double seconds = 0;
};

struct ReshardPlan {
  bool possible = false;  // a value that is not pending cannot become so
  double seconds = 0;
  std::vector<Move> moves;
};

// The plans that were made so far, by their questions.
class ReshardMemo;
std::shared_ptr<ReshardMemo> MakeReshardMemo();

// Shared by all questions about one mesh. The like weights of a model's blocks, and the tries of a
// search, ask the same ones again: what was answered once is kept. Copies share what they keep;
// not for several threads at once.
struct ReshardContext {
  AxisSizes sizes;
  CostModel cost;
  std::shared_ptr<ReshardMemo> memo = MakeReshardMemo();
};

// The answer lives as long as the context's memo.
const ReshardPlan& PlanReshard(const Placement& from, const Placement& to,
                               std::span<const int64_t> dims, int64_t element_bytes,
                               const ReshardContext& context);

// What of a value may be gathered without a word.
struct GatherLimit {
  // A gather behind which a device has so much of it, or more, is refused,
  int64_t bytes = std::numeric_limits<int64_t>::max();
  // unless it is over axes of these alone.
  AxisList asked = {};
};
// The first gather on the way that is refused; null: none.
const Move* RefusedGather(const ReshardPlan& plan, const GatherLimit& limit);

// Added to the seconds of what Partition would refuse: taken only where nothing else is possible,
// so that the error names it.
inline constexpr double kRefused = 1e6;

// PlanReshard(...).seconds, and kRefused where it is; infinite when impossible.
double ReshardSeconds(const Placement& from, const Placement& to, std::span<const int64_t> dims,
                      int64_t element_bytes, const ReshardContext& context,
                      const GatherLimit& limit = {});

}  // namespace meshtrain::sharding
