// Collectives between processes of one host, through the memory that each shares with the others.
//
// Nobody writes another's memory: each posts what it gives (in a slot, or where it lies when that
// is in its segment), says so by its ticket, and takes what it needs from the others. Waiting looks
// again for a moment where every process has a core, yields, then sleeps on the peer's tick; it
// ends with the incarnation, and at the call's deadline. A call whose members were of its
// incarnation when it had taken all that it needs has taken nothing of another.
//
// Results: every element of a reduction is computed from the members' operands in the order of the
// process group, by one process that the others copy from, or by each of them with the same
// operations: all get the same bits.
//
// The members of a call are processes of one host, given by index and in the order of the process
// group.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/collective/algorithms/schedule.h"
#include "runtime/collective/call.h"
#include "runtime/collective/memory/segment.h"
#include "runtime/collective/reduce.h"
#include "runtime/collective/yield.h"

namespace meshtrain::collective {

// One of the steps that a call takes within a host: `stage` tells them apart (0 .. 15), the same
// for all members.
struct HostCall {
  const Call* call = nullptr;
  std::span<const int> members;
  int me = 0;  // place in members
  int stage = 0;
  int size() const { return static_cast<int>(members.size()); }
};

class SharedMemory {
 public:
  explicit SharedMemory(Segment& own) : own_(own) {}

  // A new incarnation of so many processes: forgets the peers, begins tickets anew. Before the
  // segment is given to them.
  void Start(int processes, uint64_t incarnation);
  void Attach(int process, PeerSegment segment);

  // `in` may be `out`; counts in elements.
  Status AllReduce(const HostCall& host, const std::byte* in, std::byte* out, int64_t count,
                   const Reducing& how);
  // Bounds in elements, one more than members. `out` does not overlap `in`.
  Status ReduceScatter(const HostCall& host, const std::byte* in, std::span<const int64_t> bounds,
                       std::byte* out, int64_t width, ReduceFn reduce);
  // Bounds in bytes. `in` may be the own part of `out`. With `only`, just that member takes.
  Status AllGather(const HostCall& host, const std::byte* in, std::byte* out,
                   std::span<const int64_t> bounds, int only = -1);
  // Bytes; sends[m] goes to member m. The own parts are copied.
  Status AllToAll(const HostCall& host, const std::byte* in, std::span<const Range> sends,
                  std::byte* out, std::span<const Range> receives);
  // The root's `in` to everyone's `out`.
  Status Broadcast(const HostCall& host, int root, const std::byte* in, std::byte* out,
                   int64_t bytes);

 private:
  struct Use {  // of an own slot, by the last call that used it
    std::vector<int> readers;
    uint64_t done = 0;  // their tickets once they no longer read it
  };

  // The part of one call: its tickets, and the slots of its rounds.
  class Part;

  void Post(uint64_t ticket, std::span<const int> members, int me);
  bool Reached(int process, uint64_t ticket) const {
    return peers_[process].head().ticket.load(std::memory_order_acquire) >= ticket;
  }
  Status Await(const Call& call, int process, uint64_t ticket, bool small);

  Segment& own_;
  std::vector<PeerSegment> peers_;  // by process; none for us and those of other hosts
  int here_ = 1;                    // processes of this host, we among them
  bool spins_ = false;              // each of them has a core: a short wait need not give ours away
  Use uses_[kSlots];
  Yielder yielder_;
};

}  // namespace meshtrain::collective
