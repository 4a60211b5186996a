#include "runtime/collective/local.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/collective/groups.h"
#include "runtime/collective/work.h"

namespace meshtrain::collective {
namespace {

using mesh::Reduction;

// Elements summed at a time: small enough that the accumulator stays in the first-level cache.
constexpr int64_t kBlock = 2048;
// Below this many elements a second thread costs more than it gives.
constexpr int64_t kGrain = 16384;

class LocalCommunicator final : public Communicator {
 public:
  explicit LocalCommunicator(mesh::Mesh mesh)
      : mesh_(std::move(mesh)),
        ranks_(mesh_.size()),
        sent_(mesh_.size(), 0),
        by_rank_(mesh_.size()) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  const mesh::Mesh& mesh() const override { return mesh_; }

  Status AllReduce(const GroupCall& call, Reduction reduction, int64_t count,
                   std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const ReduceFn reduce, ReduceOf(call, reduction));
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, true));
    const int64_t width = mesh::DTypeBytes(call.dtype);
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    // All members are read before any is written, block by block: receive may be send.
    SpreadItems(call, groups->members.size() * blocks, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte acc[kBlock * 8];
      for (int64_t item = begin; item < end; ++item) {
        const auto& members = groups->members[item / blocks];
        const int64_t first = item % blocks * kBlock;
        const int64_t n = std::min(kBlock, count - first);
        std::memcpy(acc, by_rank_[members[0]].send + first * width, n * width);
        for (size_t i = 1; i < members.size(); ++i) {
          reduce(acc, acc, by_rank_[members[i]].send + first * width, n);
        }
        for (const int64_t rank : members) {
          std::memcpy(by_rank_[rank].receive + first * width, acc, n * width);
        }
      }
    });
    Count(2 * (groups->size - 1) * count * width / groups->size);
    return OkStatus();
  }

  Status AllGather(const GroupCall& call, int64_t count,
                   std::span<const Participant> local) override {
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
    MT_ASSIGN_OR_RETURN(const ReduceFn reduce, ReduceOf(call, reduction));
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    const int64_t width = mesh::DTypeBytes(call.dtype);
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    SpreadItems(call, mesh_.size() * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t rank = item / blocks;
        const auto& members = groups->members[groups->place[rank].first];
        const int64_t first = item % blocks * kBlock;
        const int64_t n = std::min(kBlock, count - first);
        const int64_t from = (groups->place[rank].second * count + first) * width;
        std::byte* acc = by_rank_[rank].receive + first * width;
        std::memcpy(acc, by_rank_[members[0]].send + from, n * width);
        for (size_t i = 1; i < members.size(); ++i) {
          reduce(acc, acc, by_rank_[members[i]].send + from, n);
        }
      }
    });
    Count((groups->size - 1) * count * width);
    return OkStatus();
  }

  Status AllToAll(const GroupCall& call, int64_t count,
                  std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    SpreadCopies(call, groups->size, bytes, [&](int64_t rank, int64_t j) {
      const auto [group, index] = groups->place[rank];
      return std::pair(by_rank_[rank].receive + j * bytes,
                       by_rank_[groups->members[group][j]].send + index * bytes);
    });
    Count((groups->size - 1) * bytes);
    return OkStatus();
  }

  Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                   std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, true));
    MT_RETURN_IF_ERROR(CheckRoot(call, root, groups->size));
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

  Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                 std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Groups* groups, Prepare(call, count, local, false));
    MT_RETURN_IF_ERROR(CheckSources(call, source_of, groups->size));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    SpreadCopies(call, 1, bytes, [&](int64_t rank, int64_t) {
      const auto [group, index] = groups->place[rank];
      const int64_t source = source_of[index];
      const std::byte* from = source < 0 ? nullptr : by_rank_[groups->members[group][source]].send;
      return std::pair(by_rank_[rank].receive, from);
    });
    for (int64_t m = 0; m < groups->size; ++m) {
      if (source_of[m] < 0 || source_of[m] == m) continue;
      for (const auto& members : groups->members) sent_[members[source_of[m]]] += bytes;
    }
    return OkStatus();
  }

  int64_t BytesSent(int64_t rank) const override { return sent_.at(rank); }

 private:
  // Checks the call and fills by_rank_.
  Result<const Groups*> Prepare(const GroupCall& call, int64_t count,
                                std::span<const Participant> local, bool in_place) {
    MT_ASSIGN_OR_RETURN(const Groups* groups, FindGroups(call));
    MT_RETURN_IF_ERROR(TakeParticipants(call, count, local, ranks_, in_place, by_rank_));
    return groups;
  }

  Result<const Groups*> FindGroups(const GroupCall& call) {
    const auto found = groups_.find(call.axes);
    if (found != groups_.end()) return &found->second;
    Result<Groups> made = GroupsOver(mesh_, call.axes);
    if (!made.ok()) return made.status().At(call.what);
    return &groups_.emplace(call.axes, std::move(*made)).first->second;
  }

  // Items are of about kBlock elements each.
  template <typename Body>
  void SpreadItems(const GroupCall& call, int64_t items, const Body& body) {
    Spread(call.parallel, items, kGrain / kBlock, body);
  }

  // For each rank and j < parts: copies `bytes`; `ends(rank, j)` gives (to, from). From null come
  // zeros.
  template <typename Ends>
  void SpreadCopies(const GroupCall& call, int64_t parts, int64_t bytes, const Ends& ends) {
    constexpr int64_t kCopy = kBlock * 8;
    const int64_t blocks = (bytes + kCopy - 1) / kCopy;
    SpreadItems(call, mesh_.size() * parts * blocks, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t pair = item / blocks;
        const int64_t first = item % blocks * kCopy;
        const auto [to, from] = ends(pair / parts, pair % parts);
        const int64_t n = std::min(kCopy, bytes - first);
        if (from == nullptr) {
          std::memset(to + first, 0, n);
        } else if (to != from) {
          std::memcpy(to + first, from + first, n);
        }
      }
    });
  }

  void Count(int64_t bytes) {
    for (int64_t& sent : sent_) sent += bytes;
  }

  mesh::Mesh mesh_;
  std::vector<int64_t> ranks_;                 // all of them
  std::vector<int64_t> sent_;                  // per rank
  std::vector<Participant> by_rank_;           // of the call in progress
  std::map<std::vector<int>, Groups> groups_;  // by axes
};

}  // namespace

std::unique_ptr<Communicator> MakeLocalCommunicator(mesh::Mesh mesh) {
  return std::make_unique<LocalCommunicator>(std::move(mesh));
}

}  // namespace meshtrain::collective
