// One collective between the local devices and the rest of the mesh: packs each device's operand into blocks, calls the
// communicator, unpacks. Where blocks lie in the operand or result as they are, nothing is packed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/strided.h"

namespace meshtrain::device::cpu {

class CollectiveStep {
 public:
  // Errors: kUnimplemented.
  static Result<CollectiveStep> Create(const Making& making, const program::Op& op);

  int64_t scratch_bytes() const { return pack_bytes_ + unpack_bytes_; }

  // `frames`: one per local device, with scratch. `each(body)` calls body(device) for all, in parallel where it may.
  template <typename Each>
  Status Run(collective::Communicator& communicator, const collective::ParallelFor* parallel,
             std::span<const Frame> frames, const Each& each) {
    if (!packs_.empty()) each([&](int d) { Pack(frames[d]); });
    MT_RETURN_IF_ERROR(Call(communicator, parallel, frames));
    if (!unpacks_.empty()) each([&](int d) { Unpack(frames[d]); });
    return OkStatus();
  }

 private:
  enum class Kind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };

  void Pack(const Frame& frame) const;
  void Unpack(const Frame& frame) const;
  Status Call(collective::Communicator& communicator, const collective::ParallelFor* parallel,
              std::span<const Frame> frames);

  Kind kind_ = Kind::kAllReduce;
  collective::GroupCall call_;
  mesh::Reduction reduction_ = mesh::Reduction::kSum;
  int64_t count_ = 0;  // elements, as the communicator's call takes them
  program::ValueId from_ = 0, to_ = 0;
  std::vector<StridedCopy> packs_;    // operand -> scratch, one per block
  std::vector<StridedCopy> unpacks_;  // scratch + pack_bytes_ -> result
  int64_t pack_bytes_ = 0, unpack_bytes_ = 0;
  std::vector<collective::Participant> participants_;
};

}  // namespace meshtrain::device::cpu
