// Collectives between the members of a process group: through shared memory within a host, over the
// network between hosts, and through one process of each host (its leader, the first) where both
// are needed:
//   all-reduce      reduce within the host to the leader, all-reduce between leaders, broadcast
//                   within the host
//   reduce-scatter  the same way in, each takes its part from its leader
//   all-gather      gather to the leader, all-gather between leaders, broadcast within the host
//   broadcast       the root is its host's leader
//   all-to-all      directly, each pair by its own way: nothing could be reduced on a detour
// Payloads are contiguous and laid out in the order of the process group's processes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/collective/algorithms/choose.h"
#include "runtime/collective/call.h"
#include "runtime/collective/link/network.h"
#include "runtime/collective/memory/shm.h"
#include "runtime/collective/reduce.h"

namespace meshtrain::collective {

class Transport {
 public:
  // `shared` may be null where no two processes share memory.
  Transport(Network& network, SharedMemory* shared) : network_(network), shared_(shared) {}

  // `in` may be `out`.
  Status AllReduce(const Call& call, const std::byte* in, std::byte* out, int64_t count,
                   const Reducing& how);
  // Bounds in elements, by place in the process group.
  Status ReduceScatter(const Call& call, const std::byte* in, std::span<const int64_t> bounds,
                       std::byte* out, const Reducing& how);
  // Bounds in bytes.
  Status AllGather(const Call& call, const std::byte* in, std::byte* out,
                   std::span<const int64_t> bounds);
  Status AllToAll(const Call& call, const std::byte* in, std::span<const Range> sends,
                  std::byte* out, std::span<const Range> receives);
  // `in` is read at the root only.
  Status Broadcast(const Call& call, int root, const std::byte* in, std::byte* out, int64_t bytes);

 private:
  Status ReduceToLeader(const HostCall& host, const std::byte* in, std::byte* out, int64_t count,
                        const Reducing& how);

  Network& network_;
  SharedMemory* shared_;
  std::vector<std::byte> slice_, whole_, part_;  // what lies between the stages of a call
};

}  // namespace meshtrain::collective
