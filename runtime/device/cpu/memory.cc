#include "runtime/device/cpu/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/device/cpu/kernel.h"

namespace meshtrain::device::cpu {
namespace {

size_t RoundedUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Not kResourceExhausted, which a full disk is too: that may heal, and this does not.
Status None(int64_t bytes) {
  return FailedPrecondition("cpu: expected memory for a buffer of " + std::to_string(bytes) +
                            " bytes, got: none");
}

}  // namespace

void Memory::Release::operator()(void* memory) const {
  if (mapped == 0) {
    std::free(memory);
  } else {
    ::munmap(memory, mapped);
  }
}

Result<Memory> Memory::Create(int64_t bytes, bool fenced) {
  if (bytes < 0) return InvalidArgument("cpu: a buffer of " + std::to_string(bytes) + " bytes");
  const auto size = static_cast<size_t>(bytes);
  if (!fenced) {
    void* raw = std::calloc(1, size + kAlignment);
    if (raw == nullptr) return None(bytes);
    const auto address = reinterpret_cast<uintptr_t>(raw);
    return Memory(raw, Release{},
                  static_cast<std::byte*>(raw) + RoundedUp(address, kAlignment) - address);
  }
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t body = RoundedUp(size, kAlignment), readable = RoundedUp(body, page),
               mapped = readable + page;
  void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return None(bytes);
  Memory memory(raw, Release{mapped}, static_cast<std::byte*>(raw) + readable - body);
  if (::mprotect(static_cast<std::byte*>(raw) + readable, page, PROT_NONE) != 0) return None(bytes);
  return memory;
}

void Workspaces::Return::operator()(Workspace* workspace) const {
  MutexLock lock(to->mutex_);
  to->free_.emplace_back(workspace);
}

Result<Workspaces::Lease> Workspaces::Take(size_t devices, const Sizes& sizes) {
  Lease lease(nullptr, Return{this});
  {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      lease.reset(free_.back().release());
      free_.pop_back();
    }
  }
  if (lease == nullptr) lease.reset(std::make_unique<Workspace>().release());
  if (lease->size() < devices) lease->resize(devices);
  const auto grow = [this](Memory& memory, int64_t& has, int64_t needed) -> Status {
    if (memory.data() == nullptr || has < needed) {
      memory = Memory();  // before the larger one is there
      MT_ASSIGN_OR_RETURN(memory, Memory::Create(needed, fenced_));
      has = needed;
    }
    if (fenced_) std::memset(memory.data(), 0xFF, static_cast<size_t>(needed));
    return OkStatus();
  };
  for (size_t d = 0; d < devices; ++d) {
    Device& device = (*lease)[d];
    MT_RETURN_IF_ERROR(grow(device.arena, device.sizes.arena, sizes.arena));
    MT_RETURN_IF_ERROR(grow(device.scratch, device.sizes.scratch, sizes.scratch));
  }
  return lease;
}

}  // namespace meshtrain::device::cpu
