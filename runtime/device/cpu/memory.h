// Memory of CPU devices: buffers, and the arenas and scratch that steps share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::device::cpu {

// `bytes` zeros from a multiple of kAlignment on; pages that nobody touches cost nothing.
class Memory {
 public:
  Memory() = default;
  // `fenced`: whoever reads or writes behind the last (rounded up to kAlignment) ends with SIGSEGV.
  // A few pages and microseconds each. Errors: kInvalidArgument (less than 0 bytes),
  // kFailedPrecondition (no memory).
  static Result<Memory> Create(int64_t bytes, bool fenced = false);
  std::byte* data() const { return data_; }

 private:
  struct Release {
    size_t mapped = 0;  // 0: allocated
    void operator()(void* memory) const;
  };
  Memory(void* owned, Release release, std::byte* data) : owned_(owned, release), data_(data) {}

  std::unique_ptr<void, Release> owned_{nullptr, Release{}};
  std::byte* data_ = nullptr;
};

// What a step writes and nobody reads after it. A step has one for as long as it runs and leaves
// it to the next one, of whatever plan: steps that do not run at the same time take the memory of
// the largest, not of all. Thread-safe.
class Workspaces {
 public:
  struct Sizes {
    int64_t arena = 0, scratch = 0;  // bytes, of a device
  };
  struct Device {
    Memory arena, scratch;
    Sizes sizes;
  };
  using Workspace = std::vector<Device>;  // per device of the step

  // `fenced`: each is filled with bytes of ones before a step gets it.
  explicit Workspaces(bool fenced) : fenced_(fenced) {}

  struct Return {
    Workspaces* to = nullptr;
    void operator()(Workspace* workspace) const;
  };
  using Lease = std::unique_ptr<Workspace, Return>;  // not beyond these
  // At least that large, with any content. Errors: kFailedPrecondition (no memory).
  Result<Lease> Take(size_t devices, const Sizes& sizes);

 private:
  const bool fenced_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::device::cpu
