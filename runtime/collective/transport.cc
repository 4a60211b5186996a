#include "runtime/collective/transport.h"

#include <algorithm>

namespace meshtrain::collective {
namespace {

// From here on a broadcast goes around a ring in frames instead of down a tree: each process sends
// it once, not up to log2(n) times.
constexpr int64_t kTreeBytes = 256 << 10;

// A process group as its hosts see it.
struct Hosts {
  explicit Hosts(const ProcessGroup& peers) : peers(peers), mine(peers.hosts[peers.me]) {
    first = static_cast<int>(std::lower_bound(peers.hosts.begin(), peers.hosts.end(), mine) -
                             peers.hosts.begin());
    const auto last =
        std::upper_bound(peers.hosts.begin(), peers.hosts.end(), mine) - peers.hosts.begin();
    members = std::span<const int>(peers.processes).subspan(first, last - first);
  }
  int count() const { return peers.hosts.back() + 1; }
  bool one() const { return count() == 1; }
  bool apart() const { return count() == peers.size(); }
  bool shared() const { return members.size() > 1; }
  bool leads() const { return peers.me == first; }
  HostCall At(const Call& call, int stage) const {
    return {&call, members, peers.me - first, stage};
  }
  // Places of the first process of each host, and the process group's size.
  std::vector<int> Firsts() const {
    std::vector<int> places;
    for (int p = 0; p < peers.size(); ++p) {
      if (p == 0 || peers.hosts[p] != peers.hosts[p - 1]) places.push_back(p);
    }
    places.push_back(peers.size());
    return places;
  }
  std::vector<int> Leaders() const {
    std::vector<int> processes = Firsts();
    processes.pop_back();
    for (int& p : processes) p = peers.processes[p];
    return processes;
  }

  const ProcessGroup& peers;
  const int mine;
  int first = 0;
  std::span<const int> members;
};

std::byte* Room(std::vector<std::byte>& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(bytes);
  return buffer.data();
}

std::vector<int64_t> Times(std::span<const int64_t> bounds, int64_t width) {
  std::vector<int64_t> bytes(bounds.begin(), bounds.end());
  for (int64_t& b : bytes) b *= width;
  return bytes;
}

Schedule Reduced(int n, int me, int64_t count, const Reducing& how) {
  const AllReduceAlgorithm algorithm =
      how.ring ? AllReduceAlgorithm::kRing : ChooseAllReduce(count * how.width, n);
  return MakeAllReduce(algorithm, n, me, count);
}
Schedule Scattered(std::span<const int64_t> bounds, int me, const Reducing& how) {
  const int n = static_cast<int>(bounds.size()) - 1;
  return !how.ring && ChooseDirect(bounds.back() * how.width, n) ? DirectReduceScatter(bounds, me)
                                                                 : RingReduceScatter(bounds, me);
}
Schedule Gathered(std::span<const int64_t> bounds, int me) {
  const int n = static_cast<int>(bounds.size()) - 1;
  return ChooseDirect(bounds.back(), n) ? DirectAllGather(bounds, me) : RingAllGather(bounds, me);
}
Schedule Spreading(int n, int me, int root, int64_t bytes) {
  if (n <= 2 || bytes <= kTreeBytes) return TreeBroadcast(n, me, root, bytes);
  std::vector<int64_t> bounds(n + 1, 0);  // gathering one part that is everything
  for (int i = root + 1; i <= n; ++i) bounds[i] = bytes;
  return RingAllGather(bounds, me);
}

}  // namespace

Status Transport::ReduceToLeader(const HostCall& host, const std::byte* in, std::byte* out,
                                 int64_t count, const Reducing& how) {
  const std::vector<int64_t> bounds = EvenBounds(count, host.size());
  std::byte* slice = Room(slice_, (bounds[host.me + 1] - bounds[host.me]) * how.width);
  MT_RETURN_IF_ERROR(shared_->ReduceScatter(host, in, bounds, slice, how.width, how.reduce));
  HostCall next = host;
  ++next.stage;
  return shared_->AllGather(next, slice, out, Times(bounds, how.width), 0);
}

Status Transport::AllReduce(const Call& call, const std::byte* in, std::byte* out, int64_t count,
                            const Reducing& how) {
  if (count == 0) return OkStatus();
  const Hosts hosts(*call.peers);
  if (hosts.one()) return shared_->AllReduce(hosts.At(call, 0), in, out, count, how);
  if (hosts.shared()) {
    MT_RETURN_IF_ERROR(ReduceToLeader(hosts.At(call, 0), in, out, count, how));
    in = out;
  }
  if (hosts.leads()) {
    const Schedule schedule = Reduced(hosts.count(), hosts.mine, count, how);
    MT_RETURN_IF_ERROR(
        network_.Run(call, hosts.Leaders(), schedule,
                     {in, out, how.width, schedule.ordered ? how.ordered : how.reduce}));
  }
  return hosts.shared() ? shared_->Broadcast(hosts.At(call, 2), 0, out, out, count * how.width)
                        : OkStatus();
}

Status Transport::ReduceScatter(const Call& call, const std::byte* in,
                                std::span<const int64_t> bounds, std::byte* out,
                                const Reducing& how) {
  if (bounds.back() == 0) return OkStatus();
  const Hosts hosts(*call.peers);
  if (hosts.one()) {
    return shared_->ReduceScatter(hosts.At(call, 0), in, bounds, out, how.width, how.reduce);
  }
  const std::vector<int> firsts = hosts.Firsts();
  std::vector<int64_t> by_host;
  for (const int place : firsts) by_host.push_back(bounds[place]);
  std::byte* part = out;
  if (hosts.shared()) {
    std::byte* whole = hosts.leads() ? Room(whole_, bounds.back() * how.width) : nullptr;
    MT_RETURN_IF_ERROR(ReduceToLeader(hosts.At(call, 0), in, whole, bounds.back(), how));
    if (hosts.leads()) {
      part = Room(part_, (by_host[hosts.mine + 1] - by_host[hosts.mine]) * how.width);
    }
    in = whole;
  }
  if (hosts.leads()) {
    MT_RETURN_IF_ERROR(network_.Run(call, hosts.Leaders(), Scattered(by_host, hosts.mine, how),
                                    {in, part, how.width, how.reduce}));
  }
  if (!hosts.shared()) return OkStatus();
  // The leader gives each its part.
  const auto members = hosts.members.size();
  std::vector<Range> sends(members), receives(members);
  const auto bytes = [&](int place) { return (bounds[place + 1] - bounds[place]) * how.width; };
  if (hosts.leads()) {
    for (size_t m = 0; m < members; ++m) {
      const int place = hosts.first + static_cast<int>(m);
      sends[m] = {(bounds[place] - bounds[hosts.first]) * how.width, bytes(place)};
    }
  }
  receives[0] = {0, bytes(call.peers->me)};
  return shared_->AllToAll(hosts.At(call, 2), part, sends, out, receives);
}

Status Transport::AllGather(const Call& call, const std::byte* in, std::byte* out,
                            std::span<const int64_t> bounds) {
  if (bounds.back() == 0) return OkStatus();
  const Hosts hosts(*call.peers);
  if (hosts.one()) return shared_->AllGather(hosts.At(call, 0), in, out, bounds);
  if (hosts.shared()) {
    MT_RETURN_IF_ERROR(shared_->AllGather(
        hosts.At(call, 0), in, out, bounds.subspan(hosts.first, hosts.members.size() + 1), 0));
    in = out + bounds[hosts.first];
  }
  if (hosts.leads()) {
    std::vector<int64_t> by_host;
    for (const int place : hosts.Firsts()) by_host.push_back(bounds[place]);
    MT_RETURN_IF_ERROR(
        network_.Run(call, hosts.Leaders(), Gathered(by_host, hosts.mine), {in, out}));
  }
  return hosts.shared() ? shared_->Broadcast(hosts.At(call, 2), 0, out, out, bounds.back())
                        : OkStatus();
}

Status Transport::AllToAll(const Call& call, const std::byte* in, std::span<const Range> sends,
                           std::byte* out, std::span<const Range> receives) {
  const Hosts hosts(*call.peers);
  std::vector<Range> far_sends(sends.begin(), sends.end()),
      far_receives(receives.begin(), receives.end());
  if (hosts.shared()) {
    const auto first = static_cast<size_t>(hosts.first), n = hosts.members.size();
    MT_RETURN_IF_ERROR(shared_->AllToAll(hosts.At(call, 0), in, sends.subspan(first, n), out,
                                         receives.subspan(first, n)));
    if (hosts.one()) return OkStatus();
    std::fill_n(far_sends.begin() + hosts.first, n, Range{});
    std::fill_n(far_receives.begin() + hosts.first, n, Range{});
  }
  return network_.Run(call, call.peers->processes,
                      PairwiseAllToAll(far_sends, far_receives, call.peers->me), {in, out});
}

Status Transport::Broadcast(const Call& call, int root, const std::byte* in, std::byte* out,
                            int64_t bytes) {
  if (bytes == 0) return OkStatus();
  const Hosts hosts(*call.peers);
  if (hosts.one()) return shared_->Broadcast(hosts.At(call, 0), root, in, out, bytes);
  const int root_host = call.peers->hosts[root];
  const int leader = hosts.mine == root_host ? root : hosts.first;
  if (call.peers->me == leader) {
    std::vector<int> leaders = hosts.Leaders();
    leaders[root_host] = call.peers->processes[root];
    MT_RETURN_IF_ERROR(network_.Run(
        call, leaders, Spreading(hosts.count(), hosts.mine, root_host, bytes), {in, out}));
  }
  return hosts.shared()
             ? shared_->Broadcast(hosts.At(call, 2), leader - hosts.first, out, out, bytes)
             : OkStatus();
}

}  // namespace meshtrain::collective
