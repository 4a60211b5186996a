// Carries out schedules over the connections to other processes.
//
// Kept true: what is sent is read where it lies and what is received goes where it belongs; only
// operands of reductions pass through a small buffer that stays in the cache. A message travels in
// frames; a frame is sent as soon as the bytes it needs have arrived, so a ring is a pipeline, not
// a row of barriers. One thread; it waits in poll, for the links, an end of the incarnation and the
// deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/collective/algorithms/schedule.h"
#include "runtime/collective/call.h"
#include "runtime/collective/link/stream.h"
#include "runtime/collective/reduce.h"
#include "runtime/collective/yield.h"

namespace meshtrain::collective {

struct Operands {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t width = 1;  // bytes of an element
  ReduceFn reduce = nullptr;
};

class Network {
 public:
  Network();
  ~Network();

  // A new incarnation of so many processes, without links.
  void Start(int processes);
  void Attach(int process, Stream link) { links_[process] = std::move(link); }

  // `members`: the processes that the schedule's numbers stand for.
  // Errors: kUnavailable (a peer closed its end; a checksum), what call.diagnosis says.
  Status Run(const Call& call, std::span<const int> members, const Schedule& schedule,
             const Operands& operands);

  // Payload bytes given to the system since creation.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  class Running;

  std::vector<Stream> links_;  // by process
  std::vector<std::byte> scratch_, staging_;
  int64_t bytes_sent_ = 0;
  Yielder yielder_;
};

}  // namespace meshtrain::collective
