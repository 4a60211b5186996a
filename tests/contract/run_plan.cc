#include "tests/contract/run_plan.h"

#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/collective/local.h"
#include "runtime/device/devices.h"

namespace meshtrain::device {
namespace {

using meshtrain::testing::Array;
using meshtrain::testing::Arrays;

using Buffers = std::vector<std::unique_ptr<Buffer>>;

// A buffer on each device, holding its part of `whole`.
Result<Buffers> Feed(Backend& backend, const Array& whole, const mesh::Layout& layout,
                     uint64_t seed) {
  Buffers buffers;
  for (const Array& part : meshtrain::testing::Cut(whole, layout, seed)) {
    const mesh::Tensor tensor = meshtrain::testing::ToTensor(part);
    const mesh::Device& device = layout.mesh().devices()[buffers.size()];
    MT_ASSIGN_OR_RETURN(auto buffer, backend.Allocate(device.index, part.type));
    MT_RETURN_IF_ERROR(backend.CopyIn(tensor.bytes(), *buffer));
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

Result<Array> Fetch(Backend& backend, const Buffers& buffers, const mesh::TensorType& global,
                    const mesh::Layout& layout) {
  MT_ASSIGN_OR_RETURN(mesh::Dims dims, layout.LocalShape(global.dims));
  std::vector<Array> parts;
  for (const auto& buffer : buffers) {
    mesh::Tensor tensor(mesh::TensorType{global.dtype, dims});
    MT_RETURN_IF_ERROR(backend.CopyOut(*buffer, tensor.mutable_bytes()));
    parts.push_back(meshtrain::testing::ToArray(tensor));
  }
  return meshtrain::testing::Join(parts, layout, global.dims);
}

// Collectives in memory that take as long as a network's, now more, now less.
class SlowCommunicator final : public collective::Communicator {
  using GroupCall = collective::GroupCall;
  using Participants = std::span<const collective::Participant>;

 public:
  SlowCommunicator(const mesh::Mesh& mesh, uint64_t seed, int64_t* beside)
      : base_(collective::MakeLocalCommunicator(mesh)), random_(seed), beside_(beside) {}
  const mesh::Mesh& mesh() const override { return base_->mesh(); }
  bool remote() const override { return true; }
  bool waits() const override { return true; }
  Status AllReduce(const GroupCall& call, mesh::Reduction reduction, int64_t count,
                   Participants local) override {
    TakeTime();
    return base_->AllReduce(call, reduction, count, local);
  }
  Status AllGather(const GroupCall& call, int64_t count, Participants local) override {
    TakeTime();
    return base_->AllGather(call, count, local);
  }
  Status ReduceScatter(const GroupCall& call, mesh::Reduction reduction, int64_t count,
                       Participants local) override {
    TakeTime();
    return base_->ReduceScatter(call, reduction, count, local);
  }
  Status AllToAll(const GroupCall& call, int64_t count, Participants local) override {
    TakeTime();
    return base_->AllToAll(call, count, local);
  }
  Status Broadcast(const GroupCall& call, int64_t root, int64_t count,
                   Participants local) override {
    TakeTime();
    return base_->Broadcast(call, root, count, local);
  }
  Status Permute(const GroupCall& call, std::span<const int64_t> source_of, int64_t count,
                 Participants local) override {
    TakeTime();
    return base_->Permute(call, source_of, count, local);
  }
  int64_t BytesSent(int64_t rank) const override { return base_->BytesSent(rank); }

 private:
  void TakeTime() {
    if (std::this_thread::get_id() != maker_) ++*beside_;
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
  }

  std::unique_ptr<collective::Communicator> base_;
  std::mt19937_64 random_;
  int64_t* beside_;
  std::thread::id maker_ = std::this_thread::get_id();
};

Result<const Array*> Find(const Arrays& arrays, const std::string& name) {
  const auto it = arrays.find(name);
  if (it == arrays.end()) return InvalidArgument("nothing given for `" + name + "`");
  return &it->second;
}

}  // namespace

Result<std::unique_ptr<Backend>> BackendOf(const std::string& kind, int devices, int threads) {
  auto all = MakeBackend({.kind = kind, .threads = threads, .devices = devices});
  const bool of_plugin = kind != "cpu" && kind != "discrete";
  if (!of_plugin || all.status().code() != StatusCode::kInvalidArgument) return all;
  return MakeBackend({.kind = kind, .threads = threads});
}

Result<meshtrain::testing::StepResult> RunPlan(Backend& backend, const plan::Plan& plan,
                                               const meshtrain::testing::StepInput& input,
                                               const RunOptions& options) {
  const auto& p = plan.partitioned;
  std::vector<int64_t> ranks(p.mesh.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::unique_ptr<collective::Communicator> communicator;
  if (options.calls_overlapped != nullptr) {
    communicator =
        std::make_unique<SlowCommunicator>(p.mesh, options.seed, options.calls_overlapped);
  }
  MT_ASSIGN_OR_RETURN(auto executable, backend.Compile(plan, ranks, communicator.get()));
  std::vector<Buffers> inputs, states, outputs;
  for (size_t i = 0; i < p.local.inputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Array* whole, Find(input.inputs, p.local.inputs[i].name));
    MT_ASSIGN_OR_RETURN(Buffers b, Feed(backend, *whole, p.input_layouts[i], options.seed));
    inputs.push_back(std::move(b));
  }
  for (size_t i = 0; i < p.local.states.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Array* whole, Find(input.states, p.local.states[i].name));
    MT_ASSIGN_OR_RETURN(Buffers b, Feed(backend, *whole, p.state_layouts[i], options.seed));
    states.push_back(std::move(b));
  }
  for (const program::Port& port : p.local.outputs) {
    Buffers b;
    for (size_t d = 0; d < ranks.size(); ++d) {
      MT_ASSIGN_OR_RETURN(auto buffer,
                          backend.Allocate(p.mesh.devices()[d].index, p.local.type(port.value)));
      b.push_back(std::move(buffer));
    }
    outputs.push_back(std::move(b));
  }
  std::vector<DeviceBuffers> devices(ranks.size());
  for (size_t d = 0; d < ranks.size(); ++d) {
    for (const Buffers& b : inputs) devices[d].inputs.push_back(b[d].get());
    for (const Buffers& b : states) devices[d].states.push_back(b[d].get());
    for (const Buffers& b : outputs) devices[d].outputs.push_back(b[d].get());
  }
  Status ran;
  for (int step = 0; step < options.steps && ran.ok(); ++step) ran = executable->Run(devices);
  const bool was_bad = ran.code() == StatusCode::kAborted && options.left_states != nullptr;
  if (!ran.ok() && !was_bad) return ran;
  if (options.bytes_sent != nullptr) {
    *options.bytes_sent = executable->BytesSent(0) / options.steps;
  }
  meshtrain::testing::StepResult result;
  for (size_t i = 0; i < p.local.states.size(); ++i) {
    MT_ASSIGN_OR_RETURN(result.states[p.local.states[i].name],
                        Fetch(backend, states[i], p.state_types[i], p.state_layouts[i]));
  }
  if (was_bad) {
    *options.left_states = std::move(result.states);
    return ran;
  }
  for (size_t i = 0; i < p.local.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(result.outputs[p.local.outputs[i].name],
                        Fetch(backend, outputs[i], p.output_types[i], p.output_layouts[i]));
  }
  return result;
}

}  // namespace meshtrain::device
