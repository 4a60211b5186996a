#include "runtime/collective/local.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace meshtrain::collective {
namespace {

using mesh::DType;
using mesh::Reduction;

// Elements summed at a time: small enough that the accumulator stays in the first-level cache.
constexpr int64_t kBlock = 2048;
// Below this many elements a second thread costs more than it gives.
constexpr int64_t kGrain = 16384;

struct Sum {
  template <typename T>
  static T Apply(T a, T b) { return static_cast<T>(a + b); }
};
// Both keep a NaN, whichever side it is on.
struct Max {
  template <typename T>
  static T Apply(T a, T b) { return (b > a || b != b) ? b : a; }
};
struct Min {
  template <typename T>
  static T Apply(T a, T b) { return (b < a || b != b) ? b : a; }
};

template <typename T, typename R>
void ReduceBlock(std::byte* acc_bytes, const std::byte* from_bytes, int64_t n) {
  T* __restrict acc = reinterpret_cast<T*>(acc_bytes);
  const T* __restrict from = reinterpret_cast<const T*>(from_bytes);
  for (int64_t i = 0; i < n; ++i) acc[i] = R::template Apply<T>(acc[i], from[i]);
}

using ReduceFn = void (*)(std::byte* acc, const std::byte* from, int64_t n);

template <typename T>
ReduceFn ReduceOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return ReduceBlock<T, Sum>;
    case Reduction::kMax: return ReduceBlock<T, Max>;
    case Reduction::kMin: return ReduceBlock<T, Min>;
  }
  return nullptr;
}

// Null where the reduction means nothing.
ReduceFn FindReduce(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kF32: return ReduceOf<float>(reduction);
    case DType::kF64: return ReduceOf<double>(reduction);
    case DType::kI32: return ReduceOf<int32_t>(reduction);
    case DType::kI64: return ReduceOf<int64_t>(reduction);
    case DType::kU8: return ReduceOf<uint8_t>(reduction);
    case DType::kBool: return reduction == Reduction::kSum ? nullptr : ReduceOf<uint8_t>(reduction);
  }
  return nullptr;
}

// The groups of one set of axes, as ranks.
struct Groups {
  int64_t size = 1;
  std::vector<std::vector<int64_t>> members;  // per group
  std::vector<std::pair<int, int>> place;     // per rank: its group, its index there
};

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(mesh::Mesh mesh) : mesh_(std::move(mesh)), sent_(mesh_.size(), 0), by_rank_(mesh_.size()) {}

  const mesh::Mesh& mesh() const override { return mesh_; }

  Status AllReduce(const GroupCall& call, Reduction reduction, int64_t count,
                   std::span<const Participant> local) override {
    const ReduceFn reduce = FindReduce(call.dtype, reduction);
    if (reduce == nullptr) return NoReduction(call, reduction);
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, true));
    const int64_t width = mesh::DTypeBytes(call.dtype);
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    // All members are read before any is written, block by block: receive may be send.
    Spread(call, groups->members.size() * blocks, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte acc[kBlock * 8];
      for (int64_t item = begin; item < end; ++item) {
        const auto& members = groups->members[item / blocks];
        const int64_t first = item % blocks * kBlock;
        const int64_t n = std::min(kBlock, count - first);
        std::memcpy(acc, by_rank_[members[0]].send + first * width, n * width);
        for (size_t i = 1; i < members.size(); ++i) reduce(acc, by_rank_[members[i]].send + first * width, n);
        for (const int64_t rank : members) std::memcpy(by_rank_[rank].receive + first * width, acc, n * width);
      }
    });
    Count(2 * (groups->size - 1) * count * width / groups->size);
    return OkStatus();
  }

  Status AllGather(const GroupCall& call, int64_t count, std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    SpreadCopies(call, groups->size, bytes, [&](int64_t rank, int64_t j) {
      const auto& members = groups->members[groups->place[rank].first];
      return std::pair(by_rank_[rank].receive + j * bytes, by_rank_[members[j]].send);
    });
    Count((groups->size - 1) * bytes);
    return OkStatus();
  }

  Status ReduceScatter(const GroupCall& call, Reduction reduction, int64_t count,
                       std::span<const Participant> local) override {
    const ReduceFn reduce = FindReduce(call.dtype, reduction);
    if (reduce == nullptr) return NoReduction(call, reduction);
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    const int64_t width = mesh::DTypeBytes(call.dtype);
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    Spread(call, mesh_.size() * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t rank = item / blocks;
        const auto& members = groups->members[groups->place[rank].first];
        const int64_t first = item % blocks * kBlock;
        const int64_t n = std::min(kBlock, count - first);
        const int64_t from = (groups->place[rank].second * count + first) * width;
        std::byte* acc = by_rank_[rank].receive + first * width;
        std::memcpy(acc, by_rank_[members[0]].send + from, n * width);
        for (size_t i = 1; i < members.size(); ++i) reduce(acc, by_rank_[members[i]].send + from, n);
      }
    });
    Count((groups->size - 1) * count * width);
    return OkStatus();
  }

  Status AllToAll(const GroupCall& call, int64_t count, std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    SpreadCopies(call, groups->size, bytes, [&](int64_t rank, int64_t j) {
      const auto [group, index] = groups->place[rank];
      return std::pair(by_rank_[rank].receive + j * bytes, by_rank_[groups->members[group][j]].send + index * bytes);
    });
    Count((groups->size - 1) * bytes);
    return OkStatus();
  }

  Status Broadcast(const GroupCall& call, int64_t root, int64_t count, std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, true));
    if (root < 0 || root >= groups->size) {
      return InvalidArgument(call.what + ": root must be in 0.." + std::to_string(groups->size - 1) +
                             ", got: " + std::to_string(root));
    }
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    SpreadCopies(call, 1, bytes, [&](int64_t rank, int64_t) {
      const int64_t from = groups->members[groups->place[rank].first][root];
      return std::pair(by_rank_[rank].receive, by_rank_[from].send);
    });
    if (groups->size > 1) {
      for (const auto& members : groups->members) sent_[members[root]] += bytes;
    }
    return OkStatus();
  }

  int64_t BytesSent(int64_t rank) const override { return sent_.at(rank); }

 private:
  // Checks the call and fills by_rank_.
  Result<const Groups*> Prepare(const GroupCall& call, int64_t count, std::span<const Participant> local,
                                bool in_place) {
    const auto bad = [&](const std::string& text) { return InvalidArgument(call.what + ": " + text); };
    MT_ASSIGN_OR_RETURN(const Groups* groups, FindGroups(call));
    if (static_cast<int64_t>(local.size()) != mesh_.size()) {
      return bad("each of the " + std::to_string(mesh_.size()) + " devices must take part, got: " +
                 std::to_string(local.size()));
    }
    if (count < 0) return bad("count must be at least 0, got: " + std::to_string(count));
    seen_.assign(mesh_.size(), false);
    for (const Participant& p : local) {
      if (p.rank < 0 || p.rank >= mesh_.size() || seen_[p.rank]) {
        return bad("each rank of the mesh must take part once, got: " + std::to_string(p.rank));
      }
      seen_[p.rank] = true;
      if (count > 0 && (p.send == nullptr || p.receive == nullptr)) {
        return bad("rank " + std::to_string(p.rank) + " has no buffer");
      }
      if (!in_place && count > 0 && p.send == p.receive) {
        return bad("rank " + std::to_string(p.rank) + " receives into the buffer that it sends");
      }
      by_rank_[p.rank] = p;
    }
    return groups;
  }

  Result<const Groups*> FindGroups(const GroupCall& call) {
    const auto found = groups_.find(call.axes);
    if (found != groups_.end()) return &found->second;
    for (size_t i = 0; i < call.axes.size(); ++i) {
      const int axis = call.axes[i];
      if (axis < 0 || axis >= mesh_.num_axes() ||
          std::find(call.axes.begin(), call.axes.begin() + i, axis) != call.axes.begin() + i) {
        return InvalidArgument(call.what + ": mesh " + mesh_.ToString() + " has no such group of axes, got: axis " +
                               std::to_string(axis));
      }
    }
    Groups made;
    made.place.assign(mesh_.size(), {-1, 0});
    for (int64_t rank = 0; rank < mesh_.size(); ++rank) {
      if (made.place[rank].first >= 0) continue;
      const std::vector<int64_t> members = mesh_.Group(rank, call.axes);
      for (size_t i = 0; i < members.size(); ++i) {
        made.place[members[i]] = {static_cast<int>(made.members.size()), static_cast<int>(i)};
      }
      made.size = static_cast<int64_t>(members.size());
      made.members.push_back(members);
    }
    return &groups_.emplace(call.axes, std::move(made)).first->second;
  }

  Status NoReduction(const GroupCall& call, Reduction reduction) const {
    return InvalidArgument(call.what + ": no " + std::string(mesh::ReductionName(reduction)) + " of " +
                           std::string(mesh::DTypeName(call.dtype)));
  }

  // Items are of about kBlock elements each.
  template <typename Body>
  void Spread(const GroupCall& call, int64_t items, const Body& body) {
    if (call.parallel != nullptr && items * kBlock >= 2 * kGrain) {
      (*call.parallel)(items, kGrain / kBlock, std::cref(body));
    } else {
      body(0, items);
    }
  }

  // For each rank and j < parts: copies `bytes`; `ends(rank, j)` gives (to, from).
  template <typename Ends>
  void SpreadCopies(const GroupCall& call, int64_t parts, int64_t bytes, const Ends& ends) {
    constexpr int64_t kCopy = kBlock * 8;
    const int64_t blocks = (bytes + kCopy - 1) / kCopy;
    Spread(call, mesh_.size() * parts * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t pair = item / blocks;
        const int64_t first = item % blocks * kCopy;
        const auto [to, from] = ends(pair / parts, pair % parts);
        if (to != from) std::memcpy(to + first, from + first, std::min(kCopy, bytes - first));
      }
    });
  }

  void Count(int64_t bytes) {
    for (int64_t& sent : sent_) sent += bytes;
  }

  mesh::Mesh mesh_;
  std::vector<int64_t> sent_;                 // per rank
  std::vector<Participant> by_rank_;          // of the call in progress
  std::vector<bool> seen_;
  std::map<std::vector<int>, Groups> groups_;  // by axes
};

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator(mesh::Mesh mesh) {
  return std::make_unique<LocalCommunicator>(std::move(mesh));
}

}  // namespace meshtrain::collective
