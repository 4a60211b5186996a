// Memory of CPU devices: buffers, arenas, scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace meshtrain::device::cpu
