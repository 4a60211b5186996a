// Collectives between the devices of a mesh. One Communicator serves the devices of one process:
// each call names the buffers of all its local devices at once, so that devices which share memory
// reduce in place and only one copy of the result leaves the process.
//
// Every call is made by every process in the same order (the plan's). A call never waits past the
// deadline: it ends in kDeadlineExceeded or kUnavailable naming the missing rank, after which every
// later call gives kUnavailable. One thread issues collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/mesh/layout.h"

namespace meshtrain::collective {

// How a communicator may spread local work (adding, copying) over its caller's threads: calls
// body(begin, end) for pieces of at least `grain` that cover [0, n) and returns after the last.
using ParallelFor = std::function<void(int64_t n, int64_t grain,
                                       const std::function<void(int64_t, int64_t)>& body)>;

// The buffers of one local device in one collective.
struct Participant {
  int64_t rank = 0;  // in the mesh
  const std::byte* send = nullptr;
  std::byte* receive =
      nullptr;  // may equal send for all_reduce and broadcast only; else they do not overlap
};

struct GroupCall {
  std::vector<int> axes;  // mesh axes; groups as Mesh::Group orders them
  mesh::DType dtype = mesh::DType::kF32;
  std::string what;  // for messages: "all_reduce of %31 (gradient of hidden_1.kernel)"
  const ParallelFor* parallel =
      nullptr;  // null: on the calling thread. Results do not depend on it.
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const mesh::Mesh& mesh() const = 0;

  // Whether some devices live in other processes: then a call has a price of its own, and joining
  // small ones pays.
  virtual bool remote() const { return false; }
  // Whether a call mostly waits for a network, so that computing beside it pays. May change between
  // steps.
  virtual bool waits() const { return false; }

  // receive = reduction over the group of send, `count` elements each.
  virtual Status AllReduce(const GroupCall& call, mesh::Reduction reduction, int64_t count,
                           std::span<const Participant> local) = 0;
  // receive = the group's sends one after another: `count` elements each.
  virtual Status AllGather(const GroupCall& call, int64_t count,
                           std::span<const Participant> local) = 0;
  // send: group-size blocks of `count`; receive: the reduction of the own block.
  virtual Status ReduceScatter(const GroupCall& call, mesh::Reduction reduction, int64_t count,
                               std::span<const Participant> local) = 0;
  // send: group-size blocks of `count`, block i goes to member i; receive: block j came from member
  // j.
  virtual Status AllToAll(const GroupCall& call, int64_t count,
                          std::span<const Participant> local) = 0;
  // Member `root` of each group gives send; everyone receives it.
  virtual Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                           std::span<const Participant> local) = 0;
  // Member m of each group receives what member source_of[m] sends; zeros where that is -1. A
  // member may be the source of several, or of none (StableHLO's collective_permute; halo
  // exchange).
  //   4 members, source_of {-1, 0, 1, 2}: everyone gets its left neighbour's, the first one zeros
  virtual Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                         std::span<const Participant> local) = 0;

  // Memory from which sending is cheapest: payloads that lie in it are not copied on their way to
  // processes of the same host. Aligned to a page, zeros at first, the communicator's until it is
  // destroyed. Empty where nothing is gained (the caller then uses memory of its own). For gradient
  // buckets; call it in the same order in every process.
  virtual std::span<std::byte> BucketMemory(int64_t bytes) {
    static_cast<void>(bytes);
    return {};
  }

  // Bytes that the algorithm defines one device to send (ring counting: all-reduce 2(n-1)/n,
  // gather, scatter and all-to-all (n-1)/n of the whole, broadcast the whole from its root, permute
  // the whole to each other member that receives it), summed since creation for the device of the
  // given rank: what the plan predicts. Fractions are cut off per call. 0 for ranks of other
  // processes.
  virtual int64_t BytesSent(int64_t rank) const = 0;
};

}  // namespace meshtrain::collective
