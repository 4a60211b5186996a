// A plan on devices with walls: the CPU's kernels, one device at a time, its memory open and all
// others' closed; collectives between staging copies.
#pragma once

#include <memory>
#include <random>
#include <span>
#include <vector>

#include "runtime/collective/communicator.h"
#include "runtime/device/checks.h"
#include "runtime/device/cpu/collective_step.h"
#include "runtime/device/cpu/guard.h"
#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/places.h"
#include "runtime/device/discrete/region.h"
#include "runtime/plan/plan.h"

namespace meshtrain::device {

// Where the elements of a buffer are; the region must be open to touch them.
std::byte* AddressOf(Buffer& buffer);

// Threads: Create on the caller's, the rest on the thread that does the backend's work.
class DiscreteStep {
 public:
  static Result<std::unique_ptr<DiscreteStep>> Create(std::shared_ptr<cpu::Pool> pool,
                                                      const plan::Plan& plan,
                                                      std::span<const int64_t> ranks,
                                                      std::vector<std::shared_ptr<Region>> regions,
                                                      collective::Communicator* communicator);
  // The buffers of the steps that follow; while none runs, on the caller's thread.
  void Bind(std::span<const DeviceBuffers> devices);
  // `random`: whose turn it is.
  Status Run(std::mt19937_64& random);
  int64_t BytesSent(int64_t rank) const { return communicator_->BytesSent(rank); }

 private:
  struct Collective {
    cpu::CollectiveStep step;
    std::vector<std::pair<plan::ValueId, int64_t>> sends, receives;  // values and their bytes
    // Per device: the values' copies on the host, where the collective sees them; those of one that
    // gives every member the same may be one copy.
    std::vector<std::vector<std::vector<std::byte>>> memory;
    std::vector<std::vector<std::byte>> scratch;
    std::vector<std::vector<std::byte*>> at;
    std::vector<cpu::Frame> frames;
  };
  struct Step {
    plan::StepKind kind;
    cpu::KernelPtr kernel;
    std::vector<Collective> collectives;
    plan::Slot copy_from, copy_to;
  };
  struct Device {
    std::shared_ptr<Region> region;
    Taken arena, scratch, unread;
  };

  DiscreteStep(std::shared_ptr<cpu::Pool> pool, const plan::Plan& plan,
               std::span<const int64_t> ranks)
      : pool_(std::move(pool)), places_(plan, AddressOf), guard_(plan, ranks) {}
  Status AddCollectives(const cpu::Making& making, const plan::Step& step, Step& made);
  // Between staging copies.
  Status RunCollective(Collective& collective);
  // Operands of the step's collectives to staging memory, or results from there, while the device's
  // memory is open.
  void Move(Step& step, size_t device, bool to_device);
  void RunLocal(const Step& step, size_t device);
  // The devices in the order of their turns.
  std::vector<size_t> Turns(std::mt19937_64& random) const;

  std::shared_ptr<cpu::Pool> pool_;
  cpu::Places places_;
  cpu::Guard guard_;
  int guard_step_ = -1;
  std::unique_ptr<collective::Communicator> own_communicator_;
  collective::Communicator* communicator_ = nullptr;
  std::vector<Step> steps_;
  std::vector<Device> devices_;
  std::vector<cpu::Frame> frames_;
};

}  // namespace meshtrain::device
