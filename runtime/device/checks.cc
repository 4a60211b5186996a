#include "runtime/device/checks.h"

#include <algorithm>

namespace meshtrain::device {
namespace {

std::string Name(std::string_view backend) { return std::string(backend) + ": "; }

}  // namespace

PlanBuffers::PlanBuffers(std::string_view backend, const plan::Plan& plan, size_t ranks,
                         std::vector<int> devices)
    : backend_(Name(backend)), ranks_(ranks), devices_(std::move(devices)) {
  const program::Program& local = plan.local();
  for (const program::Port& p : local.inputs) inputs_.push_back(local.type(p.value).num_bytes());
  for (const program::State& s : local.states) states_.push_back(local.type(s.entry).num_bytes());
  for (const program::Port& p : local.outputs) outputs_.push_back(local.type(p.value).num_bytes());
}

Status PlanBuffers::Check(std::span<const DeviceBuffers> devices) const {
  if (devices.size() != ranks_) {
    return InvalidArgument(backend_ + "expected buffers of " + std::to_string(ranks_) +
                           " devices, got: " + std::to_string(devices.size()));
  }
  for (size_t r = 0; r < devices.size(); ++r) {
    MT_RETURN_IF_ERROR(Fits(r, "input", devices[r].inputs, inputs_));
    MT_RETURN_IF_ERROR(Fits(r, "state", devices[r].states, states_));
    MT_RETURN_IF_ERROR(Fits(r, "output", devices[r].outputs, outputs_));
  }
  return OkStatus();
}

Status PlanBuffers::Fits(size_t rank, const char* what, const std::vector<Buffer*>& buffers,
                         const std::vector<int64_t>& bytes) const {
  if (buffers.size() != bytes.size()) {
    return InvalidArgument(backend_ + "expected " + std::to_string(bytes.size()) + " " + what +
                           " buffers, got: " + std::to_string(buffers.size()));
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (buffers[i] == nullptr || buffers[i]->bytes() < bytes[i]) {
      return InvalidArgument(
          backend_ + what + " " + std::to_string(i) + ": expected a buffer of " +
          std::to_string(bytes[i]) +
          " bytes, got: " + (buffers[i] == nullptr ? "none" : std::to_string(buffers[i]->bytes())));
    }
    if (!devices_.empty() && buffers[i]->device() != devices_[rank]) {
      return InvalidArgument(backend_ + what + " " + std::to_string(i) +
                             ": expected a buffer on device " + std::to_string(devices_[rank]) +
                             ", got: one on device " + std::to_string(buffers[i]->device()));
    }
  }
  return OkStatus();
}

Result<std::vector<int>> DevicesOf(std::string_view backend, const plan::Plan& plan,
                                   std::span<const int64_t> ranks, int there) {
  const mesh::Mesh& mesh = plan.partitioned.mesh;
  std::vector<int> devices;
  for (const int64_t rank : ranks) {
    const mesh::Device& device = mesh.devices()[rank];
    if (there > 0 && device.index >= there) {
      return InvalidArgument(Name(backend) + "mesh " + mesh.ToString() + ": expected at most " +
                             std::to_string(there) +
                             " devices, which is how many there are, got: " + device.ToString());
    }
    devices.push_back(device.index);
  }
  return devices;
}

Status CheckDevice(std::string_view backend, int device, int there) {
  if (device >= 0 && (there == 0 || device < there)) return OkStatus();
  return InvalidArgument(
      Name(backend) + "expected a device " +
      (there == 0 ? "of at least 0" : "below the " + std::to_string(there) + " that there are") +
      ", got: " + std::to_string(device));
}

Status CheckCopy(std::string_view backend, size_t want, int64_t have) {
  if (static_cast<int64_t>(want) <= have) return OkStatus();
  return InvalidArgument(Name(backend) + "expected at most the " + std::to_string(have) +
                         " bytes of the buffer, got: " + std::to_string(want));
}

Status CheckSameType(std::string_view backend, const Buffer& from, const Buffer& to) {
  if (from.type() == to.type()) return OkStatus();
  return InvalidArgument(Name(backend) + "expected a buffer of " + to.type().ToString() +
                         " to copy from, got: " + from.type().ToString());
}

Status CheckCommunicator(std::string_view backend, const plan::Plan& plan, size_t ranks,
                         const collective::Communicator* communicator) {
  if (communicator != nullptr || static_cast<int64_t>(ranks) == plan.partitioned.mesh.size()) {
    return OkStatus();
  }
  for (const plan::Step& step : plan.steps) {
    if (step.kind != plan::StepKind::kCollective) continue;
    return InvalidArgument(Name(backend) + "mesh " + plan.partitioned.mesh.ToString() +
                           ": the plan's collectives leave the " + std::to_string(ranks) +
                           " devices of this process, a communicator is needed");
  }
  return OkStatus();
}

Status CheckTypes(std::string_view backend, const plan::Plan& plan,
                  std::span<const mesh::DType> types) {
  for (const program::ValueInfo& value : plan.local().values) {
    if (std::find(types.begin(), types.end(), value.type.dtype) != types.end()) continue;
    const program::Op* op = value.op < 0 ? nullptr : &plan.local().ops[value.op];
    return Unimplemented(Name(backend) +
                         "expected a type that its devices have, got: " + value.type.ToString() +
                         (op == nullptr ? " of an input" : " of op `" + op->kind + "`"))
        .At(op == nullptr ? "" : op->where.ToString());
  }
  return OkStatus();
}

}  // namespace meshtrain::device
