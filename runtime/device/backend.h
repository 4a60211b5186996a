// The machinery that runs plans. A backend owns device memory and turns a plan into something that
// runs a step on all devices of this process; the CPU's is the reference, `null` keeps shapes and
// bytes only. tests/contract holds the suite that every backend passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/mesh/mesh.h"

namespace meshtrain::plan {
struct Plan;
}
namespace meshtrain::collective {
class Communicator;
}

namespace meshtrain::device {

// Bytes on one device; freed with the object. Host-addressable backends show them in host(), others
// give null.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual int64_t bytes() const = 0;
  virtual std::byte* host() = 0;
};

// The buffers of one device for one step, in the order of the plan's inputs, states and outputs.
// States are read and updated in place, outputs written.
struct DeviceBuffers {
  std::vector<Buffer*> inputs;
  std::vector<Buffer*> states;
  std::vector<Buffer*> outputs;
};

// A plan made ready for some devices. Run calls do not overlap.
class Executable {
 public:
  virtual ~Executable() = default;
  // One step on every local device; `devices[i]` belongs to local_ranks[i] of Compile. Errors:
  // kInvalidArgument where the buffers are not those of the plan; kAborted naming a guarded output
  // that is not finite, with every state as it was; those of the communicator.
  virtual Status Run(std::span<const DeviceBuffers> devices) = 0;
  // How long the last Run stood in, or waited for, collectives with other processes.
  virtual Duration waited() const { return {}; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Zero-filled, 64-byte aligned. Errors: kInvalidArgument (less than 0 bytes),
  // kFailedPrecondition (no memory).
  virtual Result<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;
  // To and from the buffer's start. Errors: kInvalidArgument for more bytes than the buffer has.
  virtual Status CopyIn(std::span<const std::byte> from, Buffer& to) = 0;
  virtual Status CopyOut(const Buffer& from, std::span<std::byte> to) = 0;
  // `local_ranks`: the places in the plan's mesh that this process computes. `communicator` (not
  // owned, may be null when the plan holds no collective) must outlive the executable. Errors:
  // kInvalidArgument (collectives without a communicator), kUnimplemented for an op without a
  // kernel.
  virtual Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                                      std::span<const int64_t> local_ranks,
                                                      collective::Communicator* communicator) = 0;
};

struct CpuOptions {
  int threads = 0;  // 0: one per core
};
std::unique_ptr<Backend> MakeCpuBackend(const CpuOptions& options = {});
std::unique_ptr<Backend> MakeNullBackend();

}  // namespace meshtrain::device
