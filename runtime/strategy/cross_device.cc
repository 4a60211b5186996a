#include "runtime/strategy/cross_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/collective/groups.h"
#include "runtime/collective/local.h"
#include "runtime/collective/reduce.h"

namespace meshtrain::strategy {
namespace {

using collective::GroupCall;
using collective::Participant;
using collective::ReduceFn;
using mesh::Reduction;

class CrossDevice final : public collective::Communicator {
 public:
  CrossDevice(const mesh::Mesh& mesh, CrossDeviceOps ops)
      : local_(collective::MakeLocalCommunicator(mesh)), ops_(ops) {}

  const mesh::Mesh& mesh() const override { return local_->mesh(); }

  Status AllReduce(const GroupCall& call, Reduction reduction, int64_t count,
                   std::span<const Participant> local) override {
    const ReduceFn reduce = collective::FindReduce(call.dtype, reduction);
    // What the plain one refuses, it refuses in its own words.
    if (reduce == nullptr || !Whole(call, count, local)) {
      return local_->AllReduce(call, reduction, count, local);
    }
    const int64_t width = mesh::DTypeBytes(call.dtype);
    std::set<int64_t> done;
    for (const Participant& p : local) {
      if (done.contains(p.rank)) continue;
      std::vector<Participant> group;
      for (const int64_t rank : mesh().Group(p.rank, call.axes)) {
        group.push_back(*std::find_if(local.begin(), local.end(),
                                      [&](const Participant& q) { return q.rank == rank; }));
        done.insert(rank);
      }
      for (const Participant& q : group) {
        if (q.receive != q.send) {
          std::memmove(q.receive, q.send, static_cast<size_t>(count * width));
        }
      }
      switch (ops_) {
        case CrossDeviceOps::kHierarchicalCopy:
          Pairs(group, reduce, count, width);
          break;
        case CrossDeviceOps::kRing:
          Ring(group, reduce, count, width);
          break;
        default:
          ToOne(group, reduce, count, width);
          break;
      }
      const auto n = static_cast<int64_t>(group.size());
      for (const Participant& q : group) sent_[q.rank] += 2 * (n - 1) * count * width / n;
    }
    return OkStatus();
  }
  Status AllGather(const GroupCall& call, int64_t count,
                   std::span<const Participant> local) override {
    return local_->AllGather(call, count, local);
  }
  Status ReduceScatter(const GroupCall& call, Reduction reduction, int64_t count,
                       std::span<const Participant> local) override {
    return local_->ReduceScatter(call, reduction, count, local);
  }
  Status AllToAll(const GroupCall& call, int64_t count,
                  std::span<const Participant> local) override {
    return local_->AllToAll(call, count, local);
  }
  Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                   std::span<const Participant> local) override {
    return local_->Broadcast(call, root, count, local);
  }
  Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                 std::span<const Participant> local) override {
    return local_->Permute(call, source_of, count, local);
  }
  int64_t BytesSent(int64_t rank) const override {
    const auto own = sent_.find(rank);
    return local_->BytesSent(rank) + (own == sent_.end() ? 0 : own->second);
  }

 private:
  // Whether the call makes sense, and every device takes part in it with buffers.
  bool Whole(const GroupCall& call, int64_t count, std::span<const Participant> local) const {
    if (count < 0 || !collective::GroupsOver(mesh(), call.axes).ok()) return false;
    std::set<int64_t> ranks;
    for (const Participant& p : local) {
      if (p.send == nullptr || p.receive == nullptr || p.rank < 0 || p.rank >= mesh().size()) {
        return false;
      }
      ranks.insert(p.rank);
    }
    return static_cast<int64_t>(ranks.size()) == mesh().size() && ranks.size() == local.size();
  }

  // All onto the first device in the order of the ranks, and from it to the others.
  static void ToOne(const std::vector<Participant>& group, ReduceFn reduce, int64_t count,
                    int64_t width) {
    for (size_t i = 1; i < group.size(); ++i) {
      reduce(group[0].receive, group[0].receive, group[i].receive, count);
    }
    FromOne(group, count, width);
  }

  // (0+1) + (2+3), ... onto the first, and from it to the others.
  static void Pairs(const std::vector<Participant>& group, ReduceFn reduce, int64_t count,
                    int64_t width) {
    for (size_t step = 1; step < group.size(); step *= 2) {
      for (size_t i = 0; i + step < group.size(); i += 2 * step) {
        reduce(group[i].receive, group[i].receive, group[i + step].receive, count);
      }
    }
    FromOne(group, count, width);
  }

  static void FromOne(const std::vector<Participant>& group, int64_t count, int64_t width) {
    for (size_t i = 1; i < group.size(); ++i) {
      std::memcpy(group[i].receive, group[0].receive, static_cast<size_t>(count * width));
    }
  }

  // n chunks; chunk c starts at device c + 1 and goes around, summed at each, then around once more
  // to be copied.
  static void Ring(const std::vector<Participant>& group, ReduceFn reduce, int64_t count,
                   int64_t width) {
    const auto n = static_cast<int64_t>(group.size());
    const int64_t chunk = (count + n - 1) / n;
    const auto part = [&](int64_t device, int64_t c) {
      return group[static_cast<size_t>(device % n)].receive + c * chunk * width;
    };
    const auto length = [&](int64_t c) { return std::clamp<int64_t>(count - c * chunk, 0, chunk); };
    for (int64_t c = 0; c < n; ++c) {
      if (length(c) == 0) continue;
      for (int64_t s = 1; s < n; ++s) {
        reduce(part(c + s + 1, c), part(c + s, c), part(c + s + 1, c), length(c));
      }
      for (int64_t s = 0; s + 1 < n; ++s) {
        std::memcpy(part(c + s + 1, c), part(c + s, c), static_cast<size_t>(length(c) * width));
      }
    }
  }

  std::unique_ptr<collective::Communicator> local_;
  const CrossDeviceOps ops_;
  std::map<int64_t, int64_t> sent_;
};

}  // namespace

std::unique_ptr<collective::Communicator> MakeCrossDeviceCommunicator(const mesh::Mesh& mesh,
                                                                      CrossDeviceOps ops) {
  if (ops == CrossDeviceOps::kAuto || ops == CrossDeviceOps::kNccl) {
    return collective::MakeLocalCommunicator(mesh);
  }
  return std::make_unique<CrossDevice>(mesh, ops);
}

}  // namespace meshtrain::strategy
