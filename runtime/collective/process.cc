// The communicator of one process among several: what its devices can do among themselves it does
// in its own memory, then each of its process groups (groups.h) acts as one through the transport.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/collective/fabric_impl.h"
#include "runtime/collective/groups.h"
#include "runtime/collective/work.h"
#include "runtime/wire/checksum.h"

namespace meshtrain::collective {
namespace {

using mesh::Reduction;

enum class Kind : int64_t {
  kAllReduce = 1,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kPermute
};

std::byte* Room(std::vector<std::byte>& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(bytes);
  return buffer.data();
}

class ProcessCommunicator final : public Communicator {
 public:
  ProcessCommunicator(Fabric::Impl& fabric, mesh::Mesh mesh, uint64_t plan_hash, bool ring)
      : fabric_(fabric),
        mesh_(std::move(mesh)),
        plan_hash_(plan_hash),
        ring_(ring),
        mesh_digest_(wire::Checksum(mesh_.ToString())),
        sent_(mesh_.size(), 0),
        by_rank_(mesh_.size()) {}

  ~ProcessCommunicator() override {
    for (const std::span<std::byte> bucket : buckets_) fabric_.segment->Free(bucket);
  }

  const mesh::Mesh& mesh() const override { return mesh_; }
  bool remote() const override { return true; }
  bool waits()
      const override {  // memory is copied by whoever calls; a network's bytes are waited for
    const auto& hosts = fabric_.host_of;
    return std::any_of(hosts.begin(), hosts.end(), [&](int host) { return host != hosts.front(); });
  }

  Status AllReduce(const GroupCall& call, Reduction reduction, int64_t count,
                   std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const ReduceFn reduce, ReduceOf(call, reduction));
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, true));
    const Reducing how{mesh::DTypeBytes(call.dtype), reduce,
                       FindOrderedReduce(call.dtype, reduction), ring_};
    const int64_t bytes = count * how.width;
    MT_RETURN_IF_ERROR(
        Run(call, *shape, Kind::kAllReduce, {static_cast<int64_t>(reduction), count}, [&](Call& c) {
          const ProcessGroup& peers = *c.peers;
          const bool one = peers.groups.size() == 1;
          std::byte* packed =
              one ? nullptr : Room(pack_, static_cast<int64_t>(peers.groups.size()) * bytes);
          const std::byte* in = packed;
          for (size_t g = 0; g < peers.groups.size(); ++g) {
            const std::vector<Participant> mine = Ours(peers, peers.groups[g]);
            std::byte* to = one ? mine[0].receive : packed + static_cast<int64_t>(g) * bytes;
            if (one) in = mine.size() == 1 && peers.size() > 1 ? mine[0].send : to;
            if (in != mine[0].send || mine.size() > 1) FoldSends(c, how, to, mine, 0, count);
          }
          std::byte* out = one ? Ours(peers, peers.groups[0])[0].receive : packed;
          if (peers.size() > 1) {
            MT_RETURN_IF_ERROR(fabric_.transport->AllReduce(
                c, in, out, static_cast<int64_t>(peers.groups.size()) * count, how));
          }
          for (size_t g = 0; g < peers.groups.size(); ++g) {
            for (const Participant& p : Ours(peers, peers.groups[g])) {
              Copy(c.parallel, p.receive, out + static_cast<int64_t>(g) * bytes, bytes);
            }
          }
          return OkStatus();
        }));
    Count(2 * (shape->groups.size - 1) * bytes / shape->groups.size);
    return OkStatus();
  }

  Status AllGather(const GroupCall& call, int64_t count,
                   std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, false));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    MT_RETURN_IF_ERROR(Run(call, *shape, Kind::kAllGather, {count}, [&](Call& c) {
      const ProcessGroup& peers = *c.peers;
      const std::vector<int64_t> bounds = Bounds(peers, bytes);
      if (peers.plain && peers.size() > 1) {
        const Participant& p = by_rank_[peers.seats[peers.me][0].rank];
        return fabric_.transport->AllGather(c, p.send, p.receive, bounds);
      }
      std::byte* all = Room(unpack_, bounds.back());
      for (size_t i = 0; i < peers.seats[peers.me].size(); ++i) {
        Copy(c.parallel, all + bounds[peers.me] + static_cast<int64_t>(i) * bytes,
             by_rank_[peers.seats[peers.me][i].rank].send, bytes);
      }
      if (peers.size() > 1) {
        MT_RETURN_IF_ERROR(fabric_.transport->AllGather(c, all + bounds[peers.me], all, bounds));
      }
      for (int p = 0; p < peers.size(); ++p) {
        for (size_t i = 0; i < peers.seats[p].size(); ++i) {
          const Seat& from = peers.seats[p][i];
          for (const Participant& to : Ours(peers, from.group)) {
            Copy(c.parallel, to.receive + from.member * bytes,
                 all + bounds[p] + static_cast<int64_t>(i) * bytes, bytes);
          }
        }
      }
      return OkStatus();
    }));
    Count((shape->groups.size - 1) * bytes);
    return OkStatus();
  }

  Status ReduceScatter(const GroupCall& call, Reduction reduction, int64_t count,
                       std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const ReduceFn reduce, ReduceOf(call, reduction));
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, false));
    const Reducing how{mesh::DTypeBytes(call.dtype), reduce,
                       FindOrderedReduce(call.dtype, reduction), ring_};
    const int64_t bytes = count * how.width;
    MT_RETURN_IF_ERROR(Run(
        call, *shape, Kind::kReduceScatter, {static_cast<int64_t>(reduction), count}, [&](Call& c) {
          const ProcessGroup& peers = *c.peers;
          if (peers.size() == 1) {
            for (const Seat& seat : peers.seats[0]) {
              FoldSends(c, how, by_rank_[seat.rank].receive, Ours(peers, seat.group),
                        seat.member * bytes, count);
            }
            return OkStatus();
          }
          const std::vector<int64_t> bounds = Bounds(peers, count);
          if (peers.plain) {
            const Participant& p = by_rank_[peers.seats[peers.me][0].rank];
            return fabric_.transport->ReduceScatter(c, p.send, bounds, p.receive, how);
          }
          std::byte* in = Room(pack_, bounds.back() * how.width);
          for (int p = 0; p < peers.size(); ++p) {
            for (size_t i = 0; i < peers.seats[p].size(); ++i) {
              const Seat& seat = peers.seats[p][i];
              FoldSends(c, how, in + bounds[p] * how.width + static_cast<int64_t>(i) * bytes,
                        Ours(peers, seat.group), seat.member * bytes, count);
            }
          }
          const auto& mine = peers.seats[peers.me];
          std::byte* out = Room(unpack_, static_cast<int64_t>(mine.size()) * bytes);
          MT_RETURN_IF_ERROR(fabric_.transport->ReduceScatter(c, in, bounds, out, how));
          for (size_t i = 0; i < mine.size(); ++i) {
            Copy(c.parallel, by_rank_[mine[i].rank].receive, out + static_cast<int64_t>(i) * bytes,
                 bytes);
          }
          return OkStatus();
        }));
    Count((shape->groups.size - 1) * bytes);
    return OkStatus();
  }

  Status AllToAll(const GroupCall& call, int64_t count,
                  std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, false));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    MT_RETURN_IF_ERROR(Run(call, *shape, Kind::kAllToAll, {count}, [&](Call& c) {
      const ProcessGroup& peers = *c.peers;
      // From seat `from` to seat `to` of the same group, in the order of senders, then of
      // receivers.
      Moves moves;
      for (int p = 0; p < peers.size(); ++p) {
        for (const Seat& ours : peers.seats[peers.me]) {
          for (const Seat& theirs : peers.seats[p]) {
            if (theirs.group == ours.group) {
              moves.sends.push_back({p, by_rank_[ours.rank].send + theirs.member * bytes});
            }
          }
        }
        for (const Seat& theirs : peers.seats[p]) {
          for (const Seat& ours : peers.seats[peers.me]) {
            if (theirs.group == ours.group) {
              moves.receives.push_back({p, by_rank_[ours.rank].receive + theirs.member * bytes});
            }
          }
        }
      }
      return Exchange(c, moves, bytes);
    }));
    Count((shape->groups.size - 1) * bytes);
    return OkStatus();
  }

  Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                   std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, true));
    MT_RETURN_IF_ERROR(CheckRoot(call, root, shape->groups.size));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    MT_RETURN_IF_ERROR(Run(call, *shape, Kind::kBroadcast, {root, count}, [&](Call& c) {
      const ProcessGroup& peers = *c.peers;
      // The groups by the place of their root.
      std::vector<int64_t> bounds = {0};
      std::vector<int> order;
      for (int p = 0; p < peers.size(); ++p) {
        for (const Seat& seat : peers.seats[p]) {
          if (seat.member == root) order.push_back(seat.group);
        }
        bounds.push_back(static_cast<int64_t>(order.size()) * bytes);
      }
      const auto source = [&](int group) {
        return by_rank_[shape->groups.members[group][root]].send;
      };
      const std::byte* all = nullptr;
      if (peers.size() == 1) {
        for (const int g : peers.groups) {
          for (const Participant& p : Ours(peers, g)) Copy(c.parallel, p.receive, source(g), bytes);
        }
        return OkStatus();
      }
      if (order.size() == 1) {
        const int place =
            static_cast<int>(std::upper_bound(bounds.begin(), bounds.end(), 0) - bounds.begin()) -
            1;
        const Participant& first = by_rank_[peers.seats[peers.me][0].rank];
        if (bytes > 0) {
          MT_RETURN_IF_ERROR(fabric_.transport->Broadcast(
              c, place, place == peers.me ? source(order[0]) : nullptr, first.receive, bytes));
        }
        all = first.receive;
      } else {
        std::byte* packed = Room(unpack_, bounds.back());
        for (int64_t at = bounds[peers.me]; at < bounds[peers.me + 1]; at += bytes) {
          Copy(c.parallel, packed + at, source(order[at / bytes]), bytes);
        }
        MT_RETURN_IF_ERROR(
            fabric_.transport->AllGather(c, packed + bounds[peers.me], packed, bounds));
        all = packed;
      }
      for (size_t i = 0; i < order.size(); ++i) {
        for (const Participant& p : Ours(peers, order[i])) {
          Copy(c.parallel, p.receive, all + static_cast<int64_t>(i) * bytes, bytes);
        }
      }
      return OkStatus();
    }));
    if (shape->groups.size > 1) {
      for (const auto& members : shape->groups.members) CountOf(members[root], bytes);
    }
    return OkStatus();
  }

  Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                 std::span<const Participant> local) override {
    MT_ASSIGN_OR_RETURN(const Shape* shape, Prepare(call, count, local, false));
    MT_RETURN_IF_ERROR(CheckSources(call, source_of, shape->groups.size));
    const int64_t bytes = count * mesh::DTypeBytes(call.dtype);
    std::vector<int64_t> parts(source_of.begin(), source_of.end());
    parts.push_back(count);
    MT_RETURN_IF_ERROR(Run(call, *shape, Kind::kPermute, parts, [&](Call& c) {
      const ProcessGroup& peers = *c.peers;
      Moves moves;
      const auto place_of =
          [&](const Seat& seat) {  // of a member of our process group: the place of its process
            const int process = mesh_.devices()[seat.rank].process;
            return static_cast<int>(
                std::find(peers.processes.begin(), peers.processes.end(), process) -
                peers.processes.begin());
          };
      const auto source_rank = [&](const Seat& seat) {
        return shape->groups.members[seat.group][source_of[seat.member]];
      };
      // In the order of receivers.
      for (int p = 0; p < peers.size(); ++p) {
        for (const Seat& seat : peers.seats[p]) {
          if (source_of[seat.member] < 0) {
            if (p == peers.me && bytes > 0) std::memset(by_rank_[seat.rank].receive, 0, bytes);
            continue;
          }
          const int from = place_of({seat.group, 0, source_rank(seat)});
          if (from == peers.me) moves.sends.push_back({p, by_rank_[source_rank(seat)].send});
          if (p == peers.me) moves.receives.push_back({from, by_rank_[seat.rank].receive});
        }
      }
      std::stable_sort(moves.receives.begin(), moves.receives.end(),
                       [](const auto& a, const auto& b) { return a.place < b.place; });
      return Exchange(c, moves, bytes);
    }));
    for (int64_t m = 0; m < shape->groups.size; ++m) {
      if (source_of[m] < 0 || source_of[m] == m) continue;
      for (const auto& members : shape->groups.members) CountOf(members[source_of[m]], bytes);
    }
    return OkStatus();
  }

  std::span<std::byte> BucketMemory(int64_t bytes) override {
    if (!fabric_.segment) return {};
    const std::span<std::byte> bucket = fabric_.segment->Allocate(bytes);
    if (!bucket.empty()) buckets_.push_back(bucket);
    return bucket;
  }

  int64_t BytesSent(int64_t rank) const override { return sent_.at(rank); }

 private:
  struct Shape {
    Groups groups;
    std::vector<ProcessGroup> process_groups;
  };

  // Blocks of one size that go to, or come from, the processes of a process group; by place.
  struct Moves {
    struct Send {
      int place;
      const std::byte* at;
    };
    struct Receive {
      int place;
      std::byte* at;
    };
    std::vector<Send> sends;
    std::vector<Receive> receives;
  };

  // Checks the call and fills by_rank_.
  Result<const Shape*> Prepare(const GroupCall& call, int64_t count,
                               std::span<const Participant> local, bool in_place) {
    if (fabric_.connects == 0) return fabric_.health.Check().At(call.what);
    if (connects_ != fabric_.connects) {  // hosts, and our place, may be others now
      shapes_.clear();
      connects_ = fabric_.connects;
      ranks_ = mesh_.LocalRanks(fabric_.group.process);
      for (const mesh::Device& device : mesh_.devices()) {
        if (device.process >= static_cast<int>(fabric_.host_of.size())) {
          return InvalidArgument(call.what + ": device " + device.ToString() +
                                 " of the mesh is in none of the " +
                                 std::to_string(fabric_.host_of.size()) + " processes");
        }
      }
    }
    auto found = shapes_.find(call.axes);
    if (found == shapes_.end()) {
      Result<Groups> groups = GroupsOver(mesh_, call.axes);
      if (!groups.ok()) return groups.status().At(call.what);
      Shape shape;
      shape.process_groups =
          ProcessGroupsOf(mesh_, *groups, fabric_.group.process, fabric_.host_of);
      shape.groups = std::move(*groups);
      found = shapes_.emplace(call.axes, std::move(shape)).first;
    }
    MT_RETURN_IF_ERROR(TakeParticipants(call, count, local, ranks_, in_place, by_rank_));
    return &found->second;
  }

  template <typename Body>
  Status Run(const GroupCall& call, const Shape& shape, Kind kind, std::vector<int64_t> parts,
             const Body& body) {
    parts.push_back(static_cast<int64_t>(kind));
    parts.push_back(static_cast<int64_t>(call.dtype));
    parts.push_back(static_cast<int64_t>(mesh_digest_));
    parts.push_back(ring_ ? 1 : 0);
    parts.insert(parts.end(), call.axes.begin(), call.axes.end());
    return fabric_.Run(call, plan_hash_, CallDigest(parts, call.what), [&](Call& c) {
      for (const ProcessGroup& peers : shape.process_groups) {
        c.peers = &peers;
        MT_RETURN_IF_ERROR(body(c));
      }
      return OkStatus();
    });
  }

  std::vector<Participant> Ours(const ProcessGroup& peers, int group) const {
    std::vector<Participant> ours;
    for (const Seat& seat : peers.seats[peers.me]) {
      if (seat.group == group) ours.push_back(by_rank_[seat.rank]);
    }
    return ours;
  }

  // to = the sum of what these devices send from `offset` on.
  void FoldSends(const Call& call, const Reducing& how, std::byte* to,
                 const std::vector<Participant>& from, int64_t offset, int64_t count) {
    std::vector<const std::byte*> sources;
    for (const Participant& p : from) sources.push_back(p.send + offset);
    Fold(call.parallel, how.reduce, to, sources, count, how.width);
  }

  // Where each place's blocks begin, of `unit` each.
  static std::vector<int64_t> Bounds(const ProcessGroup& peers, int64_t unit) {
    std::vector<int64_t> bounds = {0};
    for (const auto& seats : peers.seats) {
      bounds.push_back(bounds.back() + static_cast<int64_t>(seats.size()) * unit);
    }
    return bounds;
  }

  // Both sides name the blocks between two processes in the same order. Those within this process
  // are copied; a single one to or from each place is not packed.
  Status Exchange(Call& call, const Moves& moves, int64_t bytes) {
    const ProcessGroup& peers = *call.peers;
    std::vector<Range> sends(peers.size()), receives(peers.size());
    std::vector<const std::byte*> own;
    for (const auto& send : moves.sends) {
      if (send.place == peers.me) own.push_back(send.at);
    }
    size_t next = 0;
    for (const auto& receive : moves.receives) {
      if (receive.place == peers.me) Copy(call.parallel, receive.at, own[next++], bytes);
    }
    if (peers.size() == 1) return OkStatus();
    if (peers.seats[peers.me].size() == 1 && InPlace(moves.sends, bytes, peers.me, sends) &&
        InPlace(moves.receives, bytes, peers.me, receives)) {
      return fabric_.transport->AllToAll(
          call, moves.sends.empty() ? nullptr : moves.sends[0].at, sends,
          moves.receives.empty() ? nullptr : moves.receives[0].at, receives);
    }
    std::byte* in = Room(pack_, Packed(moves.sends, bytes, peers.me, sends));
    std::byte* out = Room(unpack_, Packed(moves.receives, bytes, peers.me, receives));
    for (const auto& send : moves.sends) {
      if (send.place == peers.me) continue;
      Copy(call.parallel, in, send.at, bytes);
      in += bytes;
    }
    MT_RETURN_IF_ERROR(fabric_.transport->AllToAll(call, pack_.data(), sends, out, receives));
    for (const auto& receive : moves.receives) {
      if (receive.place == peers.me) continue;
      Copy(call.parallel, receive.at, out, bytes);
      out += bytes;
    }
    return OkStatus();
  }

  // The ranges of each place's blocks relative to the first block, if each place's lie one after
  // another. For blocks of one buffer.
  template <typename Block>
  static bool InPlace(const std::vector<Block>& blocks, int64_t bytes, int me,
                      std::vector<Range>& ranges) {
    std::fill(ranges.begin(), ranges.end(), Range{});
    for (const Block& block : blocks) {
      if (block.place == me) continue;
      Range& range = ranges[block.place];
      const int64_t at = block.at - blocks[0].at;
      if (range.count == 0) range.begin = at;
      if (range.begin + range.count != at) return false;
      range.count += bytes;
    }
    return true;
  }
  // The ranges when they are packed one after another; gives their sum.
  template <typename Block>
  static int64_t Packed(const std::vector<Block>& blocks, int64_t bytes, int me,
                        std::vector<Range>& ranges) {
    std::fill(ranges.begin(), ranges.end(), Range{});
    for (const Block& block : blocks) ranges[block.place].count += block.place == me ? 0 : bytes;
    int64_t sum = 0;
    for (Range& range : ranges) {
      range.begin = sum;
      sum += range.count;
    }
    return sum;
  }

  void CountOf(int64_t rank, int64_t bytes) {
    if (std::binary_search(ranks_.begin(), ranks_.end(), rank)) sent_[rank] += bytes;
  }
  void Count(int64_t bytes) {
    for (const int64_t rank : ranks_) sent_[rank] += bytes;
  }

  Fabric::Impl& fabric_;
  const mesh::Mesh mesh_;
  const uint64_t plan_hash_;
  const bool ring_;
  const uint64_t mesh_digest_;
  std::vector<int64_t> sent_;         // per rank
  std::vector<Participant> by_rank_;  // of the call in progress; those of this process
  std::vector<int64_t> ranks_;        // of this process
  uint64_t connects_ = 0;
  std::map<std::vector<int>, Shape> shapes_;  // by axes
  std::vector<std::byte> pack_, unpack_;
  std::vector<std::span<std::byte>> buckets_;
};

}  // namespace

std::unique_ptr<Communicator> MakeProcessCommunicator(Fabric& fabric, mesh::Mesh mesh,
                                                      uint64_t plan_hash, bool ring) {
  return std::make_unique<ProcessCommunicator>(fabric.impl(), std::move(mesh), plan_hash, ring);
}

}  // namespace meshtrain::collective
