#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/device/checks.h"
#include "runtime/device/pjrt/lowering.h"
#include "runtime/device/pjrt/pjrt_backend.h"
#include "runtime/device/pjrt/plugin.h"
#include "runtime/plan/widen.h"

namespace meshtrain::device {
namespace pjrt {
namespace {

using ClientPtr = std::shared_ptr<Client>;

// What a plugin's buffer holds. It never changes, but for one that is donated to a step.
struct Held {
  explicit Held(BufferHandle given) : buffer(std::move(given)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (client != nullptr) (void)Arrive();
  }

  // Begins to copy it to the host. A step's numbers so are there with the step's end: whoever asks
  // for them one after the other waits for a device's answer each time.
  Status BeginToHost(ClientPtr from, const mesh::TensorType& type) {
    on_host.resize(static_cast<size_t>(type.num_bytes()));
    MT_ASSIGN_OR_RETURN(arrives, from->BeginToHost(buffer.get(), type, on_host));
    client = std::move(from);
    return OkStatus();
  }
  // Waits for it, the first time.
  Status Arrive() {
    if (arrives.get() == nullptr) return arrived;
    const EventHandle event = std::exchange(arrives, {});
    arrived = Await(*client->plugin(), event, "pjrt: copy to the host");
    return arrived;
  }

  BufferHandle buffer;
  ClientPtr client;  // null: nothing was copied
  std::vector<std::byte> on_host;
  EventHandle arrives;
  Status arrived;
};

// A copy on the same device is the same buffer, held twice, and a buffer held twice is not donated.
class PjrtBuffer final : public Buffer {
 public:
  PjrtBuffer(int device, mesh::TensorType type) : device_(device), type_(std::move(type)) {}
  int device() const override { return device_; }
  const mesh::TensorType& type() const override { return type_; }
  std::byte* host() override { return nullptr; }

  std::shared_ptr<Held> value;

 private:
  int device_;
  mesh::TensorType type_;
};

// Buffers of this backend are no others: a session has one.
PjrtBuffer& Ours(Buffer& buffer) { return static_cast<PjrtBuffer&>(buffer); }
const PjrtBuffer& Ours(const Buffer& buffer) { return static_cast<const PjrtBuffer&>(buffer); }

std::shared_ptr<Held> Share(BufferHandle handle) {
  return std::make_shared<Held>(std::move(handle));
}

// Numbers that are read after each step, not tensors.
constexpr int64_t kFewBytes = 64;

class PjrtExecutable final : public Executable {
 public:
  PjrtExecutable(ClientPtr client, std::shared_ptr<ExecutableHandle> executable, Lowered lowered,
                 const plan::Plan& plan, std::vector<int> devices)
      : client_(std::move(client)),
        executable_(std::move(executable)),
        lowered_(std::move(lowered)),
        buffers_("pjrt", plan, devices.size(), devices),
        bytes_per_step_(plan.CollectiveBytesPerStep()),
        inputs_(plan.local().inputs.size()),
        outputs_(plan.local().outputs.size()),
        zero_output_(plan.zero_output) {
    const program::Program& local = plan.local();
    for (const program::Port& p : local.inputs) types_.push_back(local.type(p.value));
    for (const program::State& s : local.states) types_.push_back(local.type(s.entry));
    for (const program::Port& p : local.outputs) types_.push_back(local.type(p.value));
    lowered_.text.clear();
  }
  ~PjrtExecutable() override { (void)Wait(); }

  Status Enqueue(std::span<const DeviceBuffers> devices) override {
    MT_RETURN_IF_ERROR(Wait());
    MT_RETURN_IF_ERROR(buffers_.Check(devices));
    std::vector<std::vector<PJRT_Buffer*>> arguments(devices.size());
    std::vector<int64_t> kept;
    for (size_t d = 0; d < devices.size(); ++d) {
      MT_RETURN_IF_ERROR(CheckTypes(devices[d]));
      for (Buffer* buffer : devices[d].inputs) {
        arguments[d].push_back(Ours(*buffer).value->buffer.get());
      }
      for (size_t s = 0; s < devices[d].states.size(); ++s) {
        const PjrtBuffer& state = Ours(*devices[d].states[s]);
        arguments[d].push_back(state.value->buffer.get());
        const auto index = static_cast<int64_t>(inputs_ + s);
        if (state.value.use_count() > 1 &&
            std::find(kept.begin(), kept.end(), index) == kept.end()) {
          kept.push_back(index);
        }
      }
    }
    const size_t states = lowered_.changed.size();
    const size_t codes = lowered_.guards.empty() ? 0 : 1;
    std::vector<std::vector<BufferHandle>> results(devices.size());
    for (auto& list : results) list.resize(outputs_ + states + codes);
    auto ends = client_->Execute(*executable_, arguments, kept, results);
    MT_RETURN_IF_ERROR(ends.status());
    ends_ = std::move(*ends);
    for (size_t d = 0; d < devices.size(); ++d) {
      for (size_t o = 0; o < outputs_; ++o) {
        PjrtBuffer& output = Ours(*devices[d].outputs[o]);
        output.value = Share(std::move(results[d][o]));
        if (output.bytes() <= 0 || output.bytes() > kFewBytes) continue;
        MT_RETURN_IF_ERROR(output.value->BeginToHost(client_, output.type()));
      }
      for (size_t s = 0; s < states; ++s) {
        Ours(*devices[d].states[lowered_.changed[s]]).value =
            Share(std::move(results[d][outputs_ + s]));
      }
    }
    if (codes > 0) {
      code_ = Share(std::move(results[0].back()));
      MT_RETURN_IF_ERROR(code_->BeginToHost(client_, {mesh::DType::kI32, {}}));
    }
    if (zero_output_ >= 0) count_ = Ours(*devices[0].outputs[zero_output_]).value;
    return OkStatus();
  }

  Status Wait() override {
    if (ends_.empty()) return OkStatus();
    Status status;
    for (const EventHandle& end : std::exchange(ends_, {})) {
      const Status one = Await(*client_->plugin(), end, "pjrt: a step");
      if (status.ok()) status = one;
    }
    MT_RETURN_IF_ERROR(status);
    ++steps_;
    return CheckGuards();
  }

  int64_t BytesSent(int64_t) const override { return steps_ * bytes_per_step_; }

 private:
  // A plugin's programs take buffers of their very types.
  Status CheckTypes(const DeviceBuffers& device) const {
    size_t at = 0;
    for (const auto* list : {&device.inputs, &device.states, &device.outputs}) {
      for (const Buffer* buffer : *list) {
        const mesh::TensorType& want = types_[at++];
        if (buffer->type() == want) continue;
        return InvalidArgument("pjrt: expected a buffer of " + want.ToString() +
                               ", got: " + buffer->type().ToString());
      }
    }
    return OkStatus();
  }

  Status CheckGuards() {
    if (lowered_.guards.empty()) return OkStatus();
    int32_t code = 0;
    MT_RETURN_IF_ERROR(code_->Arrive());
    std::memcpy(&code, code_->on_host.data(), sizeof code);
    if (code == 0) return OkStatus();
    const std::string& name = lowered_.guards[static_cast<size_t>(code - 1)];
    if (!name.empty()) {
      return Aborted("output `" + name + "` is not finite").From(Origin::kNumbers);
    }
    float count = 0;
    MT_RETURN_IF_ERROR(count_->Arrive());
    std::memcpy(&count, count_->on_host.data(), sizeof count);
    return Aborted(std::to_string(static_cast<int64_t>(count)) +
                   " elements of the loss and the gradients are not finite")
        .From(Origin::kNumbers);
  }

  const ClientPtr client_;
  const std::shared_ptr<ExecutableHandle> executable_;
  Lowered lowered_;
  const PlanBuffers buffers_;
  const int64_t bytes_per_step_;
  const size_t inputs_, outputs_;
  const int zero_output_;
  std::vector<mesh::TensorType> types_;  // of inputs, states, outputs
  std::vector<EventHandle> ends_;        // of the step under way
  std::shared_ptr<Held> code_, count_;
  int64_t steps_ = 0;
};

class PjrtBackend final : public Backend {
 public:
  PjrtBackend(const PjrtOptions& options, ClientPtr client)
      : options_(options), client_(std::move(client)) {
    traits_.types.assign(std::begin(mesh::kAllDTypes), std::end(mesh::kAllDTypes));
    traits_.devices = client_->devices();
    traits_.memory_bytes = client_->memory_bytes();
  }

  std::string_view name() const override { return "pjrt"; }
  const Traits& traits() const override { return traits_; }

  Result<std::unique_ptr<Buffer>> Allocate(int device, const mesh::TensorType& type) override {
    MT_RETURN_IF_ERROR(CheckDevice(name(), device, traits_.devices));
    if (type.num_bytes() < 0) return InvalidArgument("pjrt: a buffer of " + type.ToString());
    auto buffer = std::make_unique<PjrtBuffer>(device, type);
    const std::vector<std::byte> zeros(static_cast<size_t>(type.num_bytes()));
    MT_RETURN_IF_ERROR(Fill(*buffer, zeros));
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  Status CopyIn(std::span<const std::byte> from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), from.size(), to.bytes()));
    PjrtBuffer& buffer = Ours(to);
    if (static_cast<int64_t>(from.size()) == to.bytes()) return Fill(buffer, from);
    std::vector<std::byte> whole(static_cast<size_t>(to.bytes()));
    MT_RETURN_IF_ERROR(client_->ToHost(buffer.value->buffer.get(), buffer.type(), whole));
    std::copy(from.begin(), from.end(), whole.begin());
    return Fill(buffer, whole);
  }

  Status CopyOut(const Buffer& from, std::span<std::byte> to) override {
    MT_RETURN_IF_ERROR(CheckCopy(name(), to.size(), from.bytes()));
    const PjrtBuffer& buffer = Ours(from);
    if (from.bytes() == 0) return OkStatus();
    Held& held = *buffer.value;
    if (held.client != nullptr) {
      MT_RETURN_IF_ERROR(held.Arrive());
      std::copy_n(held.on_host.begin(), to.size(), to.begin());
      return OkStatus();
    }
    if (static_cast<int64_t>(to.size()) == from.bytes()) {
      return client_->ToHost(held.buffer.get(), buffer.type(), to);
    }
    std::vector<std::byte> whole(static_cast<size_t>(from.bytes()));
    MT_RETURN_IF_ERROR(client_->ToHost(held.buffer.get(), buffer.type(), whole));
    std::copy_n(whole.begin(), to.size(), to.begin());
    return OkStatus();
  }

  Status Copy(const Buffer& from, Buffer& to) override {
    MT_RETURN_IF_ERROR(CheckSameType(name(), from, to));
    if (from.device() == to.device()) {
      Ours(to).value = Ours(from).value;
      return OkStatus();
    }
    MT_ASSIGN_OR_RETURN(BufferHandle made,
                        client_->CopyTo(to.device(), Ours(from).value->buffer.get()));
    Ours(to).value = Share(std::move(made));
    return OkStatus();
  }

  // The plugin's compiler fuses.
  Result<plan::Plan> Lower(sharding::Partitioned partitioned,
                           const plan::Options& options) const override {
    plan::Options own = options;
    own.fuse = false;
    return plan::MakePlan(plan::WidenHalves(std::move(partitioned), plan::IsProduct), own);
  }

  Result<std::unique_ptr<Executable>> Compile(const plan::Plan& plan,
                                              std::span<const int64_t> local_ranks,
                                              collective::Communicator* communicator) override {
    const mesh::Mesh& mesh = plan.partitioned.mesh;
    if (communicator == nullptr) {
      MT_RETURN_IF_ERROR(CheckCommunicator(name(), plan, local_ranks.size(), communicator));
    }
    if (communicator != nullptr && plan.CollectiveBytesPerStep() > 0) {
      return Unimplemented("pjrt: mesh " + mesh.ToString() +
                           ": collectives are in the program, and so in one process; a "
                           "communicator of ours cannot do them");
    }
    if (static_cast<int64_t>(local_ranks.size()) != mesh.size()) {
      return Unimplemented("pjrt: mesh " + mesh.ToString() + ": expected all of its " +
                           std::to_string(mesh.size()) +
                           " devices in this session (a loop over replicas has one replica on a "
                           "plugin's devices), got: " +
                           std::to_string(local_ranks.size()));
    }
    MT_RETURN_IF_ERROR(CheckTypes(name(), plan, traits_.types));
    MT_ASSIGN_OR_RETURN(std::vector<int> devices,
                        DevicesOf(name(), plan, local_ranks, traits_.devices));
    const Duration begin = SystemClock().Monotonic();
    MT_ASSIGN_OR_RETURN(Lowered lowered,
                        pjrt::Lower(plan, /*for_cpus=*/client_->platform() == "cpu"));
    const Duration lowered_at = SystemClock().Monotonic();
    bool cached = false;
    MT_ASSIGN_OR_RETURN(const auto executable, Compiled(lowered.text, devices, &cached));
    const Duration end = SystemClock().Monotonic();
    const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
    counts_.lowering_seconds += seconds(lowered_at - begin);
    counts_.compile_seconds += seconds(end - lowered_at);
    ++(cached ? counts_.cached : counts_.compiled);
    return std::unique_ptr<Executable>(std::make_unique<PjrtExecutable>(
        client_, executable, std::move(lowered), plan, std::move(devices)));
  }

  const PjrtCounts& counts() const { return counts_; }

 private:
  // A program that was compiled a moment ago is not compiled again: steps come and go with their
  // sessions' plans, and a bad step is run once more.
  static constexpr size_t kRecent = 8;
  struct Recent {
    std::string text;
    std::vector<int> devices;
    std::shared_ptr<ExecutableHandle> executable;
  };

  Result<std::shared_ptr<ExecutableHandle>> Compiled(const std::string& text,
                                                     const std::vector<int>& devices,
                                                     bool* cached) {
    for (const Recent& recent : recent_) {
      if (recent.text != text || recent.devices != devices) continue;
      *cached = true;
      return recent.executable;
    }
    MT_ASSIGN_OR_RETURN(ExecutableHandle made,
                        client_->Compile(text, devices, options_.cache, cached));
    recent_.push_back({text, devices, std::make_shared<ExecutableHandle>(std::move(made))});
    if (recent_.size() > kRecent) recent_.pop_front();
    return recent_.back().executable;
  }

  Status Fill(PjrtBuffer& buffer, std::span<const std::byte> bytes) {
    MT_ASSIGN_OR_RETURN(BufferHandle made,
                        client_->FromHost(buffer.device(), buffer.type(), bytes.data()));
    buffer.value = Share(std::move(made));
    return OkStatus();
  }

  const PjrtOptions options_;
  const ClientPtr client_;
  Traits traits_;
  PjrtCounts counts_;
  std::deque<Recent> recent_;
};

}  // namespace
}  // namespace pjrt

bool HasPjrt() { return true; }

Result<std::unique_ptr<Backend>> MakePjrtBackend(const PjrtOptions& options) {
  MT_ASSIGN_OR_RETURN(pjrt::PluginPtr plugin, pjrt::Plugin::Load(options.plugin));
  MT_ASSIGN_OR_RETURN(pjrt::ClientPtr client,
                      pjrt::Client::Create(std::move(plugin), options.devices, options.options));
  if (!options.platform.empty() && client->platform() != options.platform) {
    return FailedPrecondition("devices: expected a plugin of " + options.platform +
                              ", got: " + options.plugin + ", of " + client->platform())
        .From(Origin::kManifest);
  }
  return std::unique_ptr<Backend>(std::make_unique<pjrt::PjrtBackend>(options, std::move(client)));
}

PjrtCounts CountsOfPjrtBackend(const Backend& backend) {
  MT_CHECK(backend.name() == "pjrt");
  return static_cast<const pjrt::PjrtBackend&>(backend).counts();
}

}  // namespace meshtrain::device
