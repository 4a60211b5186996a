// The machinery that runs plans. A backend owns the memory of its devices and turns a plan into
// something that runs a step on all devices of this process. Which ones there are, and who makes
// them by name: devices.h. tests/contract holds the suite that every backend passes.
//
// Order: copies and steps are enqueued in the order of the calls, and each sees what those before
// it left, on all devices of the backend. They may be under way when the call returns; CopyOut and
// the Waits look at the end. One thread uses a backend and what it made.
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
#include "runtime/sharding/sharding.h"

namespace meshtrain::plan {
struct Options;
struct Plan;
}  // namespace meshtrain::plan
namespace meshtrain::collective {
class Communicator;
}

namespace meshtrain::device {

// What follows from the kind of devices. Whoever plans or holds values asks here, and knows no
// kind.
struct Traits {
  // The host reads and writes device memory: Buffer::host() is not null.
  bool host_memory = false;
  // Devices see each other's memory, so that the shards of several may be computed by one call over
  // their union (sharding::CollapseLocal). Else each has buffers of its own, and collectives and
  // Backend::Copy alone move bytes between them.
  bool shared_memory = false;
  // Compile takes a communicator for what leaves this process, or instead of the backend's own.
  bool communicators = false;
  std::vector<mesh::DType> types;  // of elements
  int devices = 0;           // how many there are in this process; 0: as many as a mesh asks for
  int64_t memory_bytes = 0;  // of each device; 0: they take the host's
  // Steps leave their arena and scratch to the next one, so that all of them need but the largest.
  bool shared_arenas = false;
  sharding::CostModel cost;  // for choosing between layouts, and for predictions
};

// Zeros at first. Freed with the object, after whatever was enqueued before that.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual int device() const = 0;  // index among the devices of this process
  virtual const mesh::TensorType& type() const = 0;
  // The elements, 64-byte aligned; null where the host cannot look (Traits::host_memory).
  virtual std::byte* host() = 0;
  int64_t bytes() const { return type().num_bytes(); }
};

// The buffers of one device for one step, in the order of the plan's inputs, states and outputs.
// States are read and updated in place, outputs written.
struct DeviceBuffers {
  std::vector<Buffer*> inputs;
  std::vector<Buffer*> states;
  std::vector<Buffer*> outputs;
};

// A plan made ready for some devices.
class Executable {
 public:
  virtual ~Executable() = default;
  // One step on every local device; `devices[i]` belongs to local_ranks[i] of Compile. A step that
  // is under way is waited for first. Errors: kInvalidArgument where the buffers are not those of
  // the plan, or of another device; that of the step before, if nobody has waited for it.
  virtual Status Enqueue(std::span<const DeviceBuffers> devices) = 0;
  // The end of the step that was enqueued last. Errors: kAborted naming a guarded output that is
  // not finite, with every state as it was; those of the communicator; kUnavailable for a device
  // that is lost.
  virtual Status Wait() = 0;
  Status Run(std::span<const DeviceBuffers> devices) {
    MT_RETURN_IF_ERROR(Enqueue(devices));
    return Wait();
  }
  // Bytes that the device of this rank of the plan's mesh sent in collectives, over all steps that
  // have ended. 0 for ranks of other processes.
  virtual int64_t BytesSent(int64_t rank) const = 0;
  // How long the last step stood in, or waited for, collectives with other processes.
  virtual Duration waited() const { return {}; }
  // What its kernels need on each device beside the plan's arena, in bytes, as far as it is known.
  virtual int64_t scratch_bytes() const { return 0; }
  // Its arena is not left to the next step, whatever Traits::shared_arenas says of others: it lies
  // where other processes see it.
  virtual bool own_arena() const { return false; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual const Traits& traits() const = 0;
  // Errors: kInvalidArgument (a device that is not there, a type that the backend lacks, less than
  // 0 elements), kFailedPrecondition (no memory).
  virtual Result<std::unique_ptr<Buffer>> Allocate(int device, const mesh::TensorType& type) = 0;
  // To and from the buffer's start; `from` may go when CopyIn returns. Errors: kInvalidArgument for
  // more bytes than the buffer has; CopyOut: those of the steps before it, if nobody has waited.
  virtual Status CopyIn(std::span<const std::byte> from, Buffer& to) = 0;
  virtual Status CopyOut(const Buffer& from, std::span<std::byte> to) = 0;
  // All elements to a buffer of the same type, on any device; the host is not on the way. Errors:
  // kInvalidArgument.
  virtual Status Copy(const Buffer& from, Buffer& to) = 0;
  // Puts a partitioned program in the order and form in which this backend runs it: what is fused
  // is the backend's to say. Every plan passes plan::Verify. Errors: plan::MakePlan's.
  virtual Result<plan::Plan> Lower(sharding::Partitioned partitioned,
                                   const plan::Options& options) const = 0;
  // `local_ranks`: the places in the plan's mesh that this process computes; they are on the
  // devices that the mesh names. Where these are all places and `communicator` is null, collectives
  // are the backend's own. `communicator` (not owned) must outlive the executable. Errors:
  // kInvalidArgument (collectives that leave the process without a communicator; more devices than
  // there are), kUnimplemented naming an op or a type that the backend lacks with its source line,
  // or a communicator that it cannot use.
  virtual Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                                      std::span<const int64_t> local_ranks,
                                                      collective::Communicator* communicator) = 0;
};

struct CpuOptions {
  int threads = 0;  // 0: one per core
  // Each device has buffers of its own, as devices have that do not share memory. The host sees
  // them all.
  bool isolated = false;
  // Behind each buffer, arena and scratch lies memory that cannot be touched: who reads or writes
  // there ends with SIGSEGV. For tests: no sanitizer sees what a library's generated code does.
  bool fenced = false;
};
std::unique_ptr<Backend> MakeCpuBackend(const CpuOptions& options = {});
// `isolated`: as the CPU's.
std::unique_ptr<Backend> MakeNullBackend(bool isolated = false);

}  // namespace meshtrain::device
