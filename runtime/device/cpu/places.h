// Where each value of a plan is on each local device: what nobody reads stays where it is; inputs,
// states and outputs come with each step, and the arena may.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/device/backend.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device::cpu {

class Places {
 public:
  // `address`: where a buffer's elements are for a kernel.
  Places(const plan::Plan& plan, std::byte* (*address)(Buffer&));

  // Results that nobody reads are still written by their ops, all to one place of this size.
  int64_t unread_bytes() const { return unread_bytes_; }
  void AddDevice(std::byte* arena, std::byte* unread);
  void MoveArena(size_t device, std::byte* arena);

  // The buffers of a step.
  void Bind(size_t device, const DeviceBuffers& buffers);
  // Per value of the local program; null where it is not stored. The list stays where it is from
  // AddDevice of the last device on.
  const std::vector<std::byte*>& at(size_t device) const { return devices_[device].at; }
  std::byte* PlaceOf(const plan::Slot& slot, size_t device) const;

 private:
  // A value whose place comes with each step.
  struct Bound {
    plan::ValueId value;
    plan::Slot slot;
  };
  struct Device {
    std::byte* arena = nullptr;
    std::byte* unread = nullptr;
    std::vector<std::byte*> inputs, states, outputs;
    std::vector<std::byte*> at;
  };

  std::byte* (*address_)(Buffer&);
  std::vector<plan::Slot> slots_;
  std::vector<Bound> bound_;
  int64_t unread_bytes_ = 0;
  std::vector<Device> devices_;
};

}  // namespace meshtrain::device::cpu
