#include "runtime/sharding/reshard.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

namespace meshtrain::sharding {
namespace {

// One layout that the search has reached.
struct Node {
  Placement placement;
  double seconds = 0;
  int parent = -1;
  Move move;
  bool done = false;
};

class Search {
 public:
  Search(const Placement& from, const Placement& to, std::span<const int64_t> dims,
         int64_t element_bytes, const ReshardContext& context)
      : to_(to), dims_(dims), element_bytes_(element_bytes), context_(context) {
    Node& start = nodes_.emplace_back();
    start.placement = from;
  }

  ReshardPlan Run() {
    for (;;) {
      int best = -1;
      for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
        if (!nodes_[i].done && (best < 0 || nodes_[i].seconds < nodes_[best].seconds)) best = i;
      }
      if (best < 0) return {};
      nodes_[best].done = true;
      if (nodes_[best].placement == to_) return Path(best);
      Expand(best);
    }
  }

 private:
  ReshardPlan Path(int end) const {
    ReshardPlan plan;
    plan.possible = true;
    plan.seconds = nodes_[end].seconds;
    for (int i = end; nodes_[i].parent >= 0; i = nodes_[i].parent) {
      plan.moves.push_back(nodes_[i].move);
    }
    std::reverse(plan.moves.begin(), plan.moves.end());
    return plan;
  }

  int64_t Bytes(const Placement& placement) const {
    return LocalElements(placement, dims_, context_.sizes) * element_bytes_;
  }

  // Chunks of `kept` parts, cut into `more` parts each, are the chunks of kept * more parts.
  bool Aligned(int dim, int64_t kept, int64_t more) const {
    return kept == 1 || CeilDiv(dims_[dim], kept * more) * more == CeilDiv(dims_[dim], kept);
  }

  // The axes that dimension `dim` still lacks, in the target's order, when what it has is how the
  // target begins.
  AxisList Missing(const Placement& placement, int dim) const {
    const AxisList have = placement.AxesOf(dim);
    const AxisList want = to_.AxesOf(dim);
    AxisList missing;
    if (have.count >= want.count || !std::equal(have.begin(), have.end(), want.begin())) {
      return missing;
    }
    for (int i = have.count; i < want.count; ++i) missing.Add(want.axis[i]);
    return missing;
  }

  void Reach(int parent, Move move) {
    const Placement& before = nodes_[parent].placement;
    const int64_t bytes_before = Bytes(before);
    const int64_t bytes_after = Bytes(move.after);
    const int64_t n = context_.sizes.Product(move.axes);
    const CostModel& cost = context_.cost;
    move.held = bytes_after;
    switch (move.kind) {
      case MoveKind::kSlice:
        move.bytes = 0;
        break;
      case MoveKind::kAllGather:
        move.bytes = (n - 1) * bytes_before;
        break;
      case MoveKind::kReduceScatter:
        move.bytes = (n - 1) * bytes_after;
        break;
      case MoveKind::kAllReduce:
        move.bytes = 2 * (n - 1) * bytes_before / n;
        break;
      case MoveKind::kAllToAll: {
        // Blocks are cut from the padded dimension, so count them as they travel.
        const int64_t extent = LocalExtent(before, move.dim, dims_[move.dim], context_.sizes);
        const int64_t rest = extent == 0 ? 0 : bytes_before / extent;
        move.bytes = (n - 1) * CeilDiv(extent, n) * rest;
        break;
      }
    }
    move.seconds = static_cast<double>(move.bytes) / cost.link_bytes_per_second +
                   static_cast<double>(bytes_before + bytes_after) / cost.memory_bytes_per_second +
                   (move.kind == MoveKind::kSlice ? 0 : cost.collective_latency_seconds);
    const double seconds = nodes_[parent].seconds + move.seconds;
    for (Node& node : nodes_) {
      if (node.placement != move.after) continue;
      if (!node.done && seconds < node.seconds) {
        node.seconds = seconds;
        node.parent = parent;
        node.move = move;
      }
      return;
    }
    Node& node = nodes_.emplace_back();
    node.placement = move.after;
    node.seconds = seconds;
    node.parent = parent;
    node.move = move;
  }

  // The first `count` of the axes that `dim` lacks are appended to it; each must now be as `at`
  // says.
  void Append(int parent, MoveKind kind, int dim, int8_t at) {
    const Placement before = nodes_[parent].placement;
    const AxisList missing = Missing(before, dim);
    const int64_t kept = context_.sizes.Product(before.AxesOf(dim));
    Move move{.kind = kind, .dim = dim, .after = before};
    if (kind == MoveKind::kReduceScatter) move.reduction = Placement::ReductionOf(at);
    int64_t more = 1;
    for (const int axis : missing) {
      if (before.at[axis] != at) return;
      move.after.Clear(axis);
      move.after.Append(dim, axis);
      move.axes.Add(axis);
      more *= context_.sizes.size[axis];
      if (Aligned(dim, kept, more)) Reach(parent, move);
    }
  }

  void Expand(int at) {
    const Placement before = nodes_[at].placement;
    const AxisSizes& sizes = context_.sizes;
    const int rank = static_cast<int>(dims_.size());

    // Reduce what the target does not keep pending: all axes of one reduction at once, or one
    // alone.
    for (const int8_t code :
         {Placement::kPendingSum, Placement::kPendingMax, Placement::kPendingMin}) {
      Move all{
          .kind = MoveKind::kAllReduce, .reduction = Placement::ReductionOf(code), .after = before};
      for (int a = 0; a < sizes.count; ++a) {
        if (before.at[a] != code || to_.at[a] == code) continue;
        Move one{.kind = MoveKind::kAllReduce, .reduction = all.reduction, .after = before};
        one.axes.Add(a);
        one.after.Clear(a);
        Reach(at, one);
        all.axes.Add(a);
        all.after.Clear(a);
      }
      if (all.axes.count > 1) Reach(at, all);
    }

    for (int d = 0; d < rank; ++d) {
      Append(at, MoveKind::kSlice, d, Placement::kCopies);
      Append(at, MoveKind::kReduceScatter, d, Placement::kPendingSum);
      Append(at, MoveKind::kReduceScatter, d, Placement::kPendingMax);
      Append(at, MoveKind::kReduceScatter, d, Placement::kPendingMin);

      // Take the fastest axes off dimension d: join them here, or move them to where the target
      // wants them.
      const AxisList have = before.AxesOf(d);
      const AxisList want = to_.AxesOf(d);
      if (have == want) continue;  // done; what is left to do elsewhere does not depend on it
      for (int keep = have.count - 1; keep >= 0; --keep) {
        AxisList taken;
        for (int i = keep; i < have.count; ++i) taken.Add(have.axis[i]);
        int64_t kept = 1;
        for (int i = 0; i < keep; ++i) kept *= sizes.size[have.axis[i]];
        if (!Aligned(d, kept, sizes.Product(taken))) continue;
        Move gather{.kind = MoveKind::kAllGather, .axes = taken, .dim = d, .after = before};
        for (const int a : taken) gather.after.Clear(a);
        const Placement without = gather.after;
        Reach(at, gather);
        for (int to = 0; to < rank; ++to) {
          if (to == d) continue;
          // The group's order is the order in which the axes split and join: both dimensions must
          // list them alike.
          const AxisList missing = Missing(before, to);
          if (missing.count < taken.count ||
              !std::equal(taken.begin(), taken.end(), missing.begin())) {
            continue;
          }
          if (!Aligned(to, sizes.Product(before.AxesOf(to)), sizes.Product(taken))) continue;
          Move swap{.kind = MoveKind::kAllToAll,
                    .axes = taken,
                    .dim = to,
                    .from_dim = d,
                    .after = without};
          for (const int a : taken) swap.after.Append(to, a);
          Reach(at, swap);
        }
      }
    }
  }

  const Placement to_;
  std::span<const int64_t> dims_;
  int64_t element_bytes_;
  const ReshardContext& context_;
  std::vector<Node> nodes_;
};

// What is pending in the target must be pending alike in the source.
bool Possible(const Placement& from, const Placement& to) {
  for (int a = 0; a < kMaxAxes; ++a) {
    if (to.pending(a) && from.at[a] != to.at[a]) return false;
  }
  return true;
}

}  // namespace

class ReshardMemo {
 public:
  const ReshardPlan& Plan(const Placement& from, const Placement& to, std::span<const int64_t> dims,
                          int64_t element_bytes, const ReshardContext& context) {
    key_.clear();
    Put(from.at.data(), sizeof from.at);
    Put(from.order.data(), sizeof from.order);
    Put(to.at.data(), sizeof to.at);
    Put(to.order.data(), sizeof to.order);
    Put(&element_bytes, sizeof element_bytes);
    Put(dims.data(), dims.size_bytes());
    const auto known = plans_.find(key_);
    if (known != plans_.end()) return known->second;
    return plans_.emplace(key_, Search(from, to, dims, element_bytes, context).Run()).first->second;
  }

 private:
  void Put(const void* data, size_t bytes) { key_.append(static_cast<const char*>(data), bytes); }

  std::string key_;  // of the question that is asked; its memory is used again
  std::map<std::string, ReshardPlan> plans_;
};

std::shared_ptr<ReshardMemo> MakeReshardMemo() { return std::make_shared<ReshardMemo>(); }

const ReshardPlan& PlanReshard(const Placement& from, const Placement& to,
                               std::span<const int64_t> dims, int64_t element_bytes,
                               const ReshardContext& context) {
  static const ReshardPlan nothing_to_do{.possible = true}, impossible;
  if (from == to) return nothing_to_do;
  if (!Possible(from, to)) return impossible;
  return context.memo->Plan(from, to, dims, element_bytes, context);
}

const Move* RefusedGather(const ReshardPlan& plan, const GatherLimit& limit) {
  const auto refused = [&](const Move& move) {
    return move.kind == MoveKind::kAllGather && move.held >= limit.bytes &&
           !std::all_of(move.axes.begin(), move.axes.end(),
                        [&](int axis) { return limit.asked.Has(axis); });
  };
  const auto found = std::find_if(plan.moves.begin(), plan.moves.end(), refused);
  return found == plan.moves.end() ? nullptr : &*found;
}

double ReshardSeconds(const Placement& from, const Placement& to, std::span<const int64_t> dims,
                      int64_t element_bytes, const ReshardContext& context,
                      const GatherLimit& limit) {
  const ReshardPlan& plan = PlanReshard(from, to, dims, element_bytes, context);
  if (!plan.possible) return std::numeric_limits<double>::infinity();
  return plan.seconds + (RefusedGather(plan, limit) == nullptr ? 0 : kRefused);
}

}  // namespace meshtrain::sharding
