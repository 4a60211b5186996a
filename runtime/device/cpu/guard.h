// What must be finite, or 0, before a run changes a state (plan::Plan::guard_step).
//
// Kept true: of a value that lies unevenly only its elements count. What pads a shard may be
// anything, NaN included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace meshtrain::device::cpu {

// Threads: Check from several is safe.
class Guard {
 public:
  Guard() = default;
  // For the local devices of these ranks.
  Guard(const plan::Plan& plan, std::span<const int64_t> ranks);

  // What local device `device` holds; `at[v]`: where value v of the local program is. Errors:
  // kAborted naming an output that is not finite, or how many watched elements are not.
  Status Check(int device, std::span<std::byte* const> at) const;

 private:
  struct Guarded {
    program::ValueId value;
    std::string name;
    mesh::TensorType shard;
    std::vector<mesh::Dims> valid;  // per local device: how much of each dimension holds elements
  };
  static int64_t NotFinite(const Guarded& guarded, const mesh::Dims& valid, const std::byte* shard);

  std::vector<Guarded> guarded_;
  program::ValueId zero_ = program::kNoValue;
};

}  // namespace meshtrain::device::cpu
