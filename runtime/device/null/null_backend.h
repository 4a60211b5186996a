// A backend without hardware: buffers have sizes and no bytes, a run checks that they fit the plan
// and counts what would have moved. Shows that a plan, its buffers and its collectives fit together
// on any mesh, at once and in no memory.
#pragma once

#include <cstdint>

#include "runtime/device/backend.h"

namespace meshtrain::device {

struct NullCounts {
  int64_t allocated_bytes = 0;  // alive now
  int64_t peak_bytes = 0;       // the most at one time
  int64_t copied_in_bytes = 0, copied_out_bytes = 0;
  int64_t runs = 0;
  int64_t collective_bytes = 0;  // sent by one device, as the plan says, over all runs
};

// `backend` must come from MakeNullBackend. The arenas of executables count as allocated. Not
// thread-safe.
const NullCounts& CountsOfNullBackend(const Backend& backend);

}  // namespace meshtrain::device
