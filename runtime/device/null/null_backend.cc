#include "runtime/device/null/null_backend.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/device/checks.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/widen.h"

namespace meshtrain::device {
namespace {

using Counts = std::shared_ptr<NullCounts>;  // outlives the backend with its buffers

// Bytes that are only counted.
class Claim {
 public:
  Claim(Counts counts, int64_t bytes) : counts_(std::move(counts)), bytes_(bytes) {
    counts_->allocated_bytes += bytes_;
    counts_->peak_bytes = std::max(counts_->peak_bytes, counts_->allocated_bytes);
  }
  ~Claim() { counts_->allocated_bytes -= bytes_; }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  int64_t bytes() const { return bytes_; }

 private:
  Counts counts_;
  int64_t bytes_;
};

class NullBuffer final : public Buffer {
 public:
  NullBuffer(Counts counts, int device, mesh::TensorType type)
      : claim_(std::move(counts), type.num_bytes()), device_(device), type_(std::move(type)) {}
  int device() const override { return device_; }
  const mesh::TensorType& type() const override { return type_; }
  std::byte* host() override { return nullptr; }

 private:
  Claim claim_;
  int device_;
  mesh::TensorType type_;
};

class NullExecutable final : public Executable {
 public:
  NullExecutable(Counts counts, const plan::Plan& plan, std::span<const int64_t> ranks,
                 std::vector<int> devices)
      : counts_(counts),
        arenas_(counts, plan.arena_bytes * static_cast<int64_t>(ranks.size())),
        buffers_("null", plan, ranks.size(), std::move(devices)),
        ranks_(ranks.begin(), ranks.end()),
        collective_bytes_(plan.CollectiveBytesPerStep()) {}

  Status Enqueue(std::span<const DeviceBuffers> devices) override {
    MT_RETURN_IF_ERROR(buffers_.Check(devices));
    ++counts_->runs;
    ++runs_;
    counts_->collective_bytes += collective_bytes_;
    return OkStatus();
  }
  Status Wait() override { return OkStatus(); }
  // As the plan says.
  int64_t BytesSent(int64_t rank) const override {
    const bool here = std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end();
    return here ? runs_ * collective_bytes_ : 0;
  }

 private:
  Counts counts_;
  Claim arenas_;
  PlanBuffers buffers_;
  std::vector<int64_t> ranks_;
  int64_t collective_bytes_;
  int64_t runs_ = 0;
};

class NullBackend final : public Backend {
 public:
  explicit NullBackend(bool isolated) {
    traits_.shared_memory = !isolated;
    traits_.communicators = true;
    traits_.types.assign(std::begin(mesh::kAllDTypes), std::end(mesh::kAllDTypes));
  }
  std::string_view name() const override { return "null"; }
  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> Allocate(int device, const mesh::TensorType& type) override {
    MT_RETURN_IF_ERROR(CheckDevice(name(), device, traits_.devices));
    if (type.num_bytes() < 0) {
      return InvalidArgument("null: a buffer of " + std::to_string(type.num_bytes()) + " bytes");
    }
    return std::unique_ptr<Buffer>(std::make_unique<NullBuffer>(counts_, device, type));
  }

  Status CopyIn(std::span<const std::byte> from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), from.size(), to.bytes()));
    counts_->copied_in_bytes += static_cast<int64_t>(from.size());
    return OkStatus();
  }

  // Gives zeros.
  Status CopyOut(const Buffer& from, std::span<std::byte> to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), to.size(), from.bytes()));
    std::fill(to.begin(), to.end(), std::byte{0});
    counts_->copied_out_bytes += static_cast<int64_t>(to.size());
    return OkStatus();
  }

  Status Copy(const Buffer& from, Buffer& to) override { return CheckSameType(name(), from, to); }

  Result<plan::Plan> Lower(sharding::Partitioned partitioned,
                           const plan::Options& options) const override {
    return plan::MakePlan(plan::WidenHalves(std::move(partitioned)), options);
  }

  Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                              std::span<const int64_t> local_ranks,
                                              collective::Communicator* communicator) override {
    MT_RETURN_IF_ERROR(CheckCommunicator(name(), plan, local_ranks.size(), communicator));
    MT_RETURN_IF_ERROR(CheckTypes(name(), plan, traits_.types));
    std::vector<int> devices;
    if (!traits_.shared_memory) {
      MT_ASSIGN_OR_RETURN(devices, DevicesOf(name(), plan, local_ranks, traits_.devices));
    }
    return std::unique_ptr<Executable>(
        std::make_unique<NullExecutable>(counts_, plan, local_ranks, std::move(devices)));
  }

  const NullCounts& counts() const { return *counts_; }

 private:
  Counts counts_ = std::make_shared<NullCounts>();
  Traits traits_;
};

}  // namespace

const NullCounts& CountsOfNullBackend(const Backend& backend) {
  MT_CHECK(backend.name() == "null");
  return static_cast<const NullBackend&>(backend).counts();
}

std::unique_ptr<Backend> MakeNullBackend(bool isolated) {
  return std::make_unique<NullBackend>(isolated);
}

}  // namespace meshtrain::device
