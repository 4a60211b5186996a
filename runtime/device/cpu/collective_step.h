// One collective between the local devices and the rest of the mesh: packs each device's operand
// into blocks, calls the communicator, unpacks. Where blocks lie in the operand or result as they
// are, nothing is packed. Small all-reduces between processes are packed into one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/device/cpu/halo_step.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/strided.h"

namespace meshtrain::device::cpu {

class CollectiveStep {
 public:
  // Errors: kUnimplemented.
  static Result<CollectiveStep> Create(const Making& making, const program::Op& op);
  // All-reduces of one group, reduction and type as one call.
  static CollectiveStep Joined(const Making& making, std::span<const int> ops);

  int64_t scratch_bytes() const {
    return halo_ != nullptr ? halo_->scratch_bytes() : pack_bytes_ + unpack_bytes_;
  }

  // Pack, Call, Unpack. `frames`: one per local device, with scratch. `each(body)` calls
  // body(device) for all, in parallel where it may.
  template <typename Each>
  Status Run(collective::Communicator& communicator, const collective::ParallelFor* parallel,
             std::span<const Frame> frames, const Each& each) {
    Pack(frames, each);
    MT_RETURN_IF_ERROR(Call(communicator, parallel, frames));
    Unpack(frames, each);
    return OkStatus();
  }

  template <typename Each>
  void Pack(std::span<const Frame> frames, const Each& each) const {
    if (!packs_.empty() || halo_ != nullptr) each([&](int d) { PackOne(frames[d]); });
  }
  Status Call(collective::Communicator& communicator, const collective::ParallelFor* parallel,
              std::span<const Frame> frames);
  template <typename Each>
  void Unpack(std::span<const Frame> frames, const Each& each) const {
    if (!unpacks_.empty() || halo_ != nullptr) each([&](int d) { UnpackOne(frames[d]); });
  }

 private:
  enum class Kind : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
  struct Piece {
    program::ValueId value;
    StridedCopy copy;
  };

  void PackOne(const Frame& frame) const;
  void UnpackOne(const Frame& frame) const;

  Kind kind_ = Kind::kAllReduce;
  std::unique_ptr<HaloStep> halo_;  // of a halo; else null
  collective::GroupCall call_;
  mesh::Reduction reduction_ = mesh::Reduction::kSum;
  int64_t count_ = 0;  // elements, as the communicator's call takes them
  program::ValueId from_ = 0, to_ = 0;
  std::vector<Piece> packs_;    // operands -> scratch
  std::vector<Piece> unpacks_;  // scratch + pack_bytes_ -> results
  bool short_blocks_ = false;   // packed blocks may end in what no operand fills
  int64_t pack_bytes_ = 0, unpack_bytes_ = 0;
  std::vector<collective::Participant> participants_;
};

}  // namespace meshtrain::device::cpu
