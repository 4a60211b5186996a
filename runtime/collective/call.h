// What every part of one collective between processes needs to know about it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "runtime/collective/groups.h"
#include "runtime/collective/health.h"
#include "runtime/collective/link/frame.h"

namespace meshtrain::collective {

using SteadyTime = std::chrono::steady_clock::time_point;

// Turns "nothing came" and "something else came" into an error that names who and where, after
// asking the peers.
class Diagnosis {
 public:
  virtual ~Diagnosis() = default;
  // Nothing came from `process` for the deadline.
  virtual Status Late(int process) = 0;
  // A frame, or a descriptor in shared memory, was not the one expected.
  virtual Status Diverges(FrameDifference difference, const FrameHeader& got,
                          const FrameHeader& want) = 0;
};

struct Call {
  const ProcessGroup* peers = nullptr;
  FrameHeader header;   // without round, length and checksum; source is this process
  Duration deadline{};  // without a byte from those who are waited for
  const ParallelFor* parallel = nullptr;
  Health* health = nullptr;
  Diagnosis* diagnosis = nullptr;
};

}  // namespace meshtrain::collective
