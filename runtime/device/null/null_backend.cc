#include "runtime/device/null/null_backend.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/plan/plan.h"

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
  NullBuffer(Counts counts, int64_t bytes) : claim_(std::move(counts), bytes) {}
  int64_t bytes() const override { return claim_.bytes(); }
  std::byte* host() override { return nullptr; }

 private:
  Claim claim_;
};

class NullExecutable final : public Executable {
 public:
  NullExecutable(Counts counts, const plan::Plan& plan, size_t devices)
      : counts_(counts),
        arenas_(counts, plan.arena_bytes * static_cast<int64_t>(devices)),
        devices_(devices),
        collective_bytes_(plan.CollectiveBytesPerStep()) {
    const program::Program& local = plan.local();
    for (const program::Port& p : local.inputs) inputs_.push_back(local.type(p.value).num_bytes());
    for (const program::State& s : local.states) states_.push_back(local.type(s.entry).num_bytes());
    for (const program::Port& p : local.outputs) {
      outputs_.push_back(local.type(p.value).num_bytes());
    }
  }

  Status Run(std::span<const DeviceBuffers> devices) override {
    if (devices.size() != devices_) {
      return InvalidArgument("null: expected buffers of " + std::to_string(devices_) +
                             " devices, got: " + std::to_string(devices.size()));
    }
    for (const DeviceBuffers& d : devices) {
      MT_RETURN_IF_ERROR(Fits("input", d.inputs, inputs_));
      MT_RETURN_IF_ERROR(Fits("state", d.states, states_));
      MT_RETURN_IF_ERROR(Fits("output", d.outputs, outputs_));
    }
    ++counts_->runs;
    counts_->collective_bytes += collective_bytes_;
    return OkStatus();
  }

 private:
  static Status Fits(const char* what, const std::vector<Buffer*>& buffers,
                     const std::vector<int64_t>& bytes) {
    if (buffers.size() != bytes.size()) {
      return InvalidArgument(std::string("null: expected ") + std::to_string(bytes.size()) + " " +
                             what + " buffers, got: " + std::to_string(buffers.size()));
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (buffers[i] != nullptr && buffers[i]->bytes() >= bytes[i]) continue;
      return InvalidArgument(
          std::string("null: ") + what + " " + std::to_string(i) + ": expected a buffer of " +
          std::to_string(bytes[i]) +
          " bytes, got: " + (buffers[i] == nullptr ? "none" : std::to_string(buffers[i]->bytes())));
    }
    return OkStatus();
  }

  Counts counts_;
  Claim arenas_;
  size_t devices_;
  int64_t collective_bytes_;
  std::vector<int64_t> inputs_, states_, outputs_;
};

class NullBackend final : public Backend {
 public:
  std::string_view name() const override { return "null"; }

  Result<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    if (bytes < 0) return InvalidArgument("null: a buffer of " + std::to_string(bytes) + " bytes");
    return std::unique_ptr<Buffer>(std::make_unique<NullBuffer>(counts_, bytes));
  }

  Status CopyIn(std::span<const std::byte> from, Buffer& to) override {
    MT_RETURN_IF_ERROR(Within(from.size(), to.bytes()));
    counts_->copied_in_bytes += static_cast<int64_t>(from.size());
    return OkStatus();
  }

  // Gives zeros.
  Status CopyOut(const Buffer& from, std::span<std::byte> to) override {
    MT_RETURN_IF_ERROR(Within(to.size(), from.bytes()));
    std::fill(to.begin(), to.end(), std::byte{0});
    counts_->copied_out_bytes += static_cast<int64_t>(to.size());
    return OkStatus();
  }

  Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                              std::span<const int64_t> local_ranks,
                                              collective::Communicator* communicator) override {
    if (communicator == nullptr && plan.CollectiveBytesPerStep() > 0) {
      return InvalidArgument("null: the plan holds collectives, a communicator is needed");
    }
    return std::unique_ptr<Executable>(
        std::make_unique<NullExecutable>(counts_, plan, local_ranks.size()));
  }

  const NullCounts& counts() const { return *counts_; }

 private:
  static Status Within(size_t want, int64_t have) {
    if (static_cast<int64_t>(want) <= have) return OkStatus();
    return InvalidArgument("null: expected at most the " + std::to_string(have) +
                           " bytes of the buffer, got: " + std::to_string(want));
  }

  Counts counts_ = std::make_shared<NullCounts>();
};

}  // namespace

const NullCounts& CountsOfNullBackend(const Backend& backend) {
  MT_CHECK(backend.name() == "null");
  return static_cast<const NullBackend&>(backend).counts();
}

std::unique_ptr<Backend> MakeNullBackend() { return std::make_unique<NullBackend>(); }

}  // namespace meshtrain::device
