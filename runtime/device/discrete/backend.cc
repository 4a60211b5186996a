#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/device/checks.h"
#include "runtime/device/discrete/discrete_backend.h"
#include "runtime/device/discrete/executable.h"
#include "runtime/device/queue.h"
#include "runtime/plan/widen.h"

namespace meshtrain::device {
namespace {

// Bytes behind a wall; work that is under way holds them too.
struct Block {
  std::shared_ptr<Region> region;
  Taken bytes;
};

class DiscreteBuffer final : public Buffer {
 public:
  DiscreteBuffer(std::shared_ptr<Block> block, int device, mesh::TensorType type)
      : block_(std::move(block)), device_(device), type_(std::move(type)) {}
  int device() const override { return device_; }
  const mesh::TensorType& type() const override { return type_; }
  std::byte* host() override { return nullptr; }
  const std::shared_ptr<Block>& block() const { return block_; }

 private:
  std::shared_ptr<Block> block_;
  int device_;
  mesh::TensorType type_;
};

// Buffers of this backend are no others: a session has one.
const std::shared_ptr<Block>& BlockOf(const Buffer& buffer) {
  return static_cast<const DiscreteBuffer&>(buffer).block();
}

// What the thread that does the work and those that ask for it share. Alive as long as one of them.
class Work {
 public:
  static Result<std::shared_ptr<Work>> Create(const DiscreteOptions& options) {
    auto work = std::make_shared<Work>(options);
    MT_ASSIGN_OR_RETURN(work->queue_, Queue::Create("discrete devices"));
    return work;
  }
  explicit Work(const DiscreteOptions& options)
      : pool(std::make_shared<cpu::Pool>(options.threads)),
        random(options.seed),
        longest_delay_(options.longest_delay),
        lost_(options.lost),
        lost_after_steps_(options.lost_after_steps) {}

  uint64_t Enqueue(std::function<Status()> body) {
    return queue_->Begin([this, body = std::move(body)] {
      // A sleep is never short, so that not every piece has one.
      constexpr uint64_t kOneIn = 8;
      if (longest_delay_.count() > 0 && random() % kOneIn == 0) {
        const auto most = static_cast<uint64_t>(longest_delay_.count());
        std::this_thread::sleep_for(Duration(static_cast<int64_t>(random() % most)));
      }
      return body();
    });
  }
  Status Wait(uint64_t number) { return queue_->Wait(number); }
  Status Finish() { return queue_->Finish(); }

  // On the thread.
  void CountStep() { ++steps_; }
  Status CheckThere(int device) const {
    if (lost_after_steps_ < 0 || steps_ <= lost_after_steps_ || device != lost_) return OkStatus();
    return Unavailable("discrete: device " + std::to_string(device) + " is lost")
        .From(Origin::kDevice);
  }

  const std::shared_ptr<cpu::Pool> pool;
  std::mt19937_64 random;  // the thread's

 private:
  int64_t steps_ = 0;  // the thread's: that were begun
  const Duration longest_delay_;
  const int lost_;
  const int64_t lost_after_steps_;
  std::unique_ptr<Queue> queue_;  // last: its thread uses what stands above
};

class DiscreteExecutable final : public Executable {
 public:
  DiscreteExecutable(std::shared_ptr<Work> work, std::unique_ptr<DiscreteStep> step,
                     PlanBuffers buffers, std::vector<int> devices)
      : work_(std::move(work)),
        step_(std::move(step)),
        buffers_(std::move(buffers)),
        devices_(std::move(devices)) {}
  ~DiscreteExecutable() override { (void)work_->Wait(last_); }

  Status Enqueue(std::span<const DeviceBuffers> devices) override {
    MT_RETURN_IF_ERROR(Wait());
    MT_RETURN_IF_ERROR(buffers_.Check(devices));
    // The buffers' blocks live until the step has ended, whoever drops the buffers.
    std::vector<std::shared_ptr<Block>> held;
    for (const DeviceBuffers& d : devices) {
      for (const auto* list : {&d.inputs, &d.states, &d.outputs}) {
        for (const Buffer* buffer : *list) held.push_back(BlockOf(*buffer));
      }
    }
    // Addresses, not bytes: those of the step before are no more in use.
    step_->Bind(devices);
    last_ = work_->Enqueue([this, held = std::move(held)] {
      work_->CountStep();
      for (const int device : devices_) MT_RETURN_IF_ERROR(work_->CheckThere(device));
      return step_->Run(work_->random);
    });
    return OkStatus();
  }
  Status Wait() override { return work_->Finish(); }
  int64_t BytesSent(int64_t rank) const override {
    (void)work_->Wait(last_);
    return step_->BytesSent(rank);
  }

 private:
  std::shared_ptr<Work> work_;
  std::unique_ptr<DiscreteStep> step_;
  PlanBuffers buffers_;
  std::vector<int> devices_;
  uint64_t last_ = 0;
};

class DiscreteBackend final : public Backend {
 public:
  DiscreteBackend(const DiscreteOptions& options, std::shared_ptr<Work> work)
      : options_(options), work_(std::move(work)) {
    traits_.communicators = true;
    traits_.types.assign(std::begin(mesh::kAllDTypes), std::end(mesh::kAllDTypes));
    traits_.devices = options.devices;
    traits_.memory_bytes = options.memory_bytes;
  }
  ~DiscreteBackend() override { (void)work_->Finish(); }

  std::string_view name() const override { return "discrete"; }
  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> Allocate(int device, const mesh::TensorType& type) override {
    MT_RETURN_IF_ERROR(CheckDevice(name(), device, traits_.devices));
    if (type.num_bytes() < 0) return InvalidArgument("discrete: a buffer of " + type.ToString());
    MT_ASSIGN_OR_RETURN(std::shared_ptr<Region> region, RegionOf(device));
    auto block = std::make_shared<Block>();
    MT_ASSIGN_OR_RETURN(block->bytes, Taken::Create(region, type.num_bytes()));
    block->region = std::move(region);
    return std::unique_ptr<Buffer>(
        std::make_unique<DiscreteBuffer>(std::move(block), device, type));
  }

  Status CopyIn(std::span<const std::byte> from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), from.size(), to.bytes()));
    if (from.empty()) return OkStatus();
    work_->Enqueue([work = work_.get(), bytes = std::vector<std::byte>(from.begin(), from.end()),
                    to = BlockOf(to)] {
      MT_RETURN_IF_ERROR(work->CheckThere(to->region->device()));
      const Opened open(*to->region);
      std::memcpy(to->bytes.data(), bytes.data(), bytes.size());
      return OkStatus();
    });
    return OkStatus();
  }

  Status CopyOut(const Buffer& from, std::span<std::byte> to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), to.size(), from.bytes()));
    return work_->Wait(work_->Enqueue([work = work_.get(), from = BlockOf(from), to] {
      MT_RETURN_IF_ERROR(work->CheckThere(from->region->device()));
      const Opened open(*from->region);
      if (!to.empty()) std::memcpy(to.data(), from->bytes.data(), to.size());
      return OkStatus();
    }));
  }

  // Through staging memory: no two devices' memory is open at a time.
  Status Copy(const Buffer& from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckSameType(name(), from, to));
    const auto bytes = static_cast<size_t>(from.bytes());
    work_->Enqueue([work = work_.get(), from = BlockOf(from), to = BlockOf(to), bytes] {
      MT_RETURN_IF_ERROR(work->CheckThere(from->region->device()));
      MT_RETURN_IF_ERROR(work->CheckThere(to->region->device()));
      std::vector<std::byte> staging(bytes);
      if (bytes == 0) return OkStatus();
      {
        const Opened open(*from->region);
        std::memcpy(staging.data(), from->bytes.data(), bytes);
      }
      const Opened open(*to->region);
      std::memcpy(to->bytes.data(), staging.data(), bytes);
      return OkStatus();
    });
    return OkStatus();
  }

  Result<plan::Plan> Lower(sharding::Partitioned partitioned,
                           const plan::Options& options) const override {
    return plan::MakePlan(plan::WidenHalves(std::move(partitioned)), options);
  }

  Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                              std::span<const int64_t> local_ranks,
                                              collective::Communicator* communicator) override {
    MT_RETURN_IF_ERROR(work_->pool->health());
    MT_RETURN_IF_ERROR(CheckCommunicator(name(), plan, local_ranks.size(), communicator));
    MT_RETURN_IF_ERROR(CheckTypes(name(), plan, traits_.types));
    MT_ASSIGN_OR_RETURN(std::vector<int> devices,
                        DevicesOf(name(), plan, local_ranks, traits_.devices));
    std::vector<std::shared_ptr<Region>> regions;
    for (const int device : devices) {
      MT_ASSIGN_OR_RETURN(std::shared_ptr<Region> region, RegionOf(device));
      regions.push_back(std::move(region));
    }
    MT_ASSIGN_OR_RETURN(auto step, DiscreteStep::Create(work_->pool, plan, local_ranks,
                                                        std::move(regions), communicator));
    return std::unique_ptr<Executable>(std::make_unique<DiscreteExecutable>(
        work_, std::move(step), PlanBuffers(name(), plan, local_ranks.size(), devices), devices));
  }

 private:
  Result<std::shared_ptr<Region>> RegionOf(int device) {
    std::shared_ptr<Region>& region = regions_[device];
    if (region == nullptr) {
      MT_ASSIGN_OR_RETURN(region, Region::Create(device, options_.memory_bytes));
    }
    return region;
  }

  const DiscreteOptions options_;
  Traits traits_;
  std::map<int, std::shared_ptr<Region>> regions_;
  std::shared_ptr<Work> work_;
};

}  // namespace

std::byte* AddressOf(Buffer& buffer) { return BlockOf(buffer)->bytes.data(); }

const std::byte* BehindTheWall(const Buffer& buffer) { return BlockOf(buffer)->bytes.data(); }

Result<std::unique_ptr<Backend>> MakeDiscreteBackend(const DiscreteOptions& options) {
  MT_ASSIGN_OR_RETURN(std::shared_ptr<Work> work, Work::Create(options));
  return std::unique_ptr<Backend>(std::make_unique<DiscreteBackend>(options, std::move(work)));
}

}  // namespace meshtrain::device
