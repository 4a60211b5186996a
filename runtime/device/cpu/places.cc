#include "runtime/device/cpu/places.h"

#include <algorithm>

namespace meshtrain::device::cpu {

using plan::Slot;
using plan::SlotKind;

Places::Places(const plan::Plan& plan, std::byte* (*address)(Buffer&))
    : address_(address), slots_(plan.slots) {
  for (const plan::Step& step : plan.steps) {
    if (step.kind != plan::StepKind::kOp) continue;
    for (const plan::ValueId v : plan.local().ops[step.ops[0]].results) {
      if (slots_[v].kind == SlotKind::kNone) {
        unread_bytes_ = std::max(unread_bytes_, plan.local().type(v).num_bytes());
      }
    }
  }
  for (size_t v = 0; v < slots_.size(); ++v) {
    if (slots_[v].kind != SlotKind::kNone && slots_[v].kind != SlotKind::kArena) {
      bound_.push_back({static_cast<plan::ValueId>(v), slots_[v]});
    }
  }
}

void Places::AddDevice(std::byte* arena, std::byte* unread) {
  Device device{.arena = nullptr, .unread = unread};
  device.at.assign(slots_.size(), nullptr);
  for (size_t v = 0; v < slots_.size(); ++v) {
    if (slots_[v].kind == SlotKind::kNone) device.at[v] = unread;
  }
  devices_.push_back(std::move(device));
  MoveArena(devices_.size() - 1, arena);
}

void Places::MoveArena(size_t device, std::byte* arena) {
  Device& d = devices_[device];
  if (d.arena == arena) return;
  d.arena = arena;
  for (size_t v = 0; v < slots_.size(); ++v) {
    if (slots_[v].kind == SlotKind::kArena) d.at[v] = arena + slots_[v].offset;
  }
}

void Places::Bind(size_t device, const DeviceBuffers& buffers) {
  Device& d = devices_[device];
  const auto addresses = [&](const std::vector<Buffer*>& from, std::vector<std::byte*>& to) {
    to.clear();
    for (Buffer* buffer : from) to.push_back(address_(*buffer));
  };
  addresses(buffers.inputs, d.inputs);
  addresses(buffers.states, d.states);
  addresses(buffers.outputs, d.outputs);
  for (const Bound& b : bound_) d.at[b.value] = PlaceOf(b.slot, device);
}

std::byte* Places::PlaceOf(const Slot& slot, size_t device) const {
  const Device& d = devices_[device];
  switch (slot.kind) {
    case SlotKind::kInput:
      return d.inputs[slot.index] + slot.offset;
    case SlotKind::kState:
      return d.states[slot.index] + slot.offset;
    case SlotKind::kOutput:
      return d.outputs[slot.index] + slot.offset;
    case SlotKind::kArena:
      return d.arena + slot.offset;
    case SlotKind::kNone:
      break;
  }
  return d.unread;
}

}  // namespace meshtrain::device::cpu
