// Devices of host memory with walls: what GPUs and TPUs ask of everything above them, where there
// are none. Each device has an address space of its own, protected pages that only its own kernels
// and explicit transfers can touch: the host, or another device's kernel, that follows a pointer
// there traps (SIGSEGV). Work is done by a thread of its own, some time after it was enqueued, as a
// seed says; devices take their turns in an order that the seed draws. Nothing is merged, and
// collectives go through staging memory.
//
// Numbers are those of the CPU's kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/device/backend.h"

namespace meshtrain::device {

struct DiscreteOptions {
  int threads = 0;    // that a device's kernels spread over; 0: one per core
  uint64_t seed = 0;  // of delays and turns
  // Some pieces of work, as the seed says, begin this much later, at most.
  Duration longest_delay = std::chrono::microseconds(20);
  int devices = 0;           // 0: as many as a mesh asks for
  int64_t memory_bytes = 0;  // of each device; 0: as much as the host has
  // After so many steps the device `lost` is gone, as hardware may be: whatever needs it is
  // kUnavailable, of Origin::kDevice, from then on. -1: never.
  int64_t lost_after_steps = -1;
  int lost = 0;
};
// Of a text as "seed=3,devices=4,lost=1,lost_after_steps=20": the fields above by their names, but
// for threads; the delay is `longest_delay_us`. "": none. Errors: kInvalidArgument.
Result<DiscreteOptions> ParseDiscreteOptions(std::string_view text);

// Errors: kUnavailable (no thread).
Result<std::unique_ptr<Backend>> MakeDiscreteBackend(const DiscreteOptions& options = {});

// Where the elements of a buffer of this backend are behind the wall. For tests of the wall.
const std::byte* BehindTheWall(const Buffer& buffer);

}  // namespace meshtrain::device
