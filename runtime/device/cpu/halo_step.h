// A halo exchange on the CPU: rows that other members need are packed by how far away they are, one
// permutation for each distance, and put around the member's own.
#pragma once

#include <memory>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/strided.h"

namespace meshtrain::device::cpu {

class HaloStep {
 public:
  HaloStep(const Making& making, const program::Op& op);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  // Of one device.
  void Pack(const Frame& frame) const;
  Status Call(collective::Communicator& communicator, const collective::GroupCall& call,
              std::span<const Frame> frames) const;
  void Unpack(const Frame& frame) const;

 private:
  struct Exchange {
    std::vector<int64_t> source_of;
    int64_t count = 0;               // elements
    int64_t sent = 0, received = 0;  // where they lie in the scratch
  };
  struct Device {
    int64_t rank = 0;
    std::vector<StridedCopy> packs, own, unpacks;  // operand -> scratch, operand -> result, ...
    bool fills = false;                            // part of the block lies outside
  };

  program::ValueId from_, to_;
  Element outside_;
  int64_t width_, elements_;  // of the result
  int64_t scratch_bytes_ = 0;
  std::vector<Exchange> exchanges_;
  std::vector<Device> devices_;
};

}  // namespace meshtrain::device::cpu
