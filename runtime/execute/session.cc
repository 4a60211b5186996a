#include "runtime/execute/session.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/collective/local.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::execute {
namespace {

// Ranks of `mesh` that this process computes. One process today: all of them.
std::vector<int64_t> LocalRanks(const Mesh& mesh) { return mesh.LocalRanks(mesh.devices()[0].process); }

}  // namespace

Session::Session(SessionOptions options, std::unique_ptr<device::Backend> backend)
    : options_(std::move(options)), backend_(std::move(backend)) {}
Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Create(SessionOptions options, std::unique_ptr<device::Backend> backend) {
  if (backend == nullptr) backend = device::MakeCpuBackend({.threads = options.threads});
  return std::unique_ptr<Session>(new Session(std::move(options), std::move(backend)));
}

Result<Mesh> Session::RunMesh(const Mesh& mesh) const {
  if (options_.isolated) return mesh;
  return sharding::CollapseLocal(mesh);
}

Result<DTensor> Session::Make(const TensorType& type, const Layout& layout) {
  if (layout.IsPartial()) {
    return InvalidArgument("tensor " + type.ToString() + ": a stored tensor cannot be partial, got layout: " +
                           layout.ToString());
  }
  MT_RETURN_IF_ERROR(layout.LocalShape(type.dims).status());
  DTensor tensor;
  tensor.type_ = type;
  tensor.layout_ = layout;
  MT_ASSIGN_OR_RETURN(const Mesh mesh, RunMesh(layout.mesh()));
  tensor.run_layout_ = options_.isolated ? layout : sharding::OnMesh(layout, mesh);
  MT_ASSIGN_OR_RETURN(mesh::Dims local, tensor.run_layout_.LocalShape(type.dims));
  const TensorType shard{type.dtype, std::move(local)};
  for (size_t i = 0; i < LocalRanks(mesh).size(); ++i) {
    MT_ASSIGN_OR_RETURN(std::unique_ptr<device::Buffer> buffer, backend_->Allocate(shard.num_bytes()));
    tensor.buffers_.push_back(std::move(buffer));
  }
  return tensor;
}

Status Session::Fill(const DTensor& to, const Tensor& from) {
  if (from.type() != to.type_) {
    return InvalidArgument("expected a tensor of type " + to.type_.ToString() + ", got: " + from.type().ToString());
  }
  const Layout& layout = to.run_layout_;
  const std::vector<int64_t> ranks = LocalRanks(layout.mesh());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (layout.Canonical().IsReplicated()) {
      MT_RETURN_IF_ERROR(backend_->CopyIn(from.bytes(), *to.buffers_[i]));
      continue;
    }
    const Layout::Slice slice = layout.SliceOf(ranks[i], from.dims());
    Tensor shard(TensorType{from.type().dtype, layout.LocalShape(from.dims()).value()});
    if (slice.sizes != shard.dims()) std::memset(shard.mutable_bytes().data(), 0, shard.mutable_bytes().size());
    shard.Paste(from.Slice(slice.offsets, slice.sizes), mesh::Dims(slice.offsets.size(), 0));
    MT_RETURN_IF_ERROR(backend_->CopyIn(shard.bytes(), *to.buffers_[i]));
  }
  return OkStatus();
}

Result<Tensor> Session::Gather(const DTensor& value) const {
  MT_CHECK(value.valid());
  const Layout& layout = value.run_layout_;
  const std::vector<int64_t> ranks = LocalRanks(layout.mesh());
  Tensor whole(value.type_);
  if (layout.Canonical().IsReplicated()) {
    MT_RETURN_IF_ERROR(backend_->CopyOut(*value.buffers_[0], whole.mutable_bytes()));
    return whole;
  }
  const TensorType shard_type{value.type_.dtype, layout.LocalShape(value.type_.dims).value()};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Layout::Slice slice = layout.SliceOf(ranks[i], value.type_.dims);
    Tensor shard(shard_type);
    MT_RETURN_IF_ERROR(backend_->CopyOut(*value.buffers_[i], shard.mutable_bytes()));
    whole.Paste(shard.Slice(mesh::Dims(slice.sizes.size(), 0), slice.sizes), slice.offsets);
  }
  return whole;
}

Result<DTensor> Session::CopyToMesh(const Tensor& value, const Layout& layout) {
  MT_ASSIGN_OR_RETURN(DTensor tensor, Make(value.type(), layout));
  MT_RETURN_IF_ERROR(Fill(tensor, value));
  return tensor;
}

Result<DTensor> Session::Pack(std::span<const Tensor> components, const Layout& layout) {
  const Mesh& mesh = layout.mesh();
  if (static_cast<int64_t>(components.size()) != mesh.size()) {
    return InvalidArgument("pack: expected one component for each of the " + std::to_string(mesh.size()) +
                           " devices, got: " + std::to_string(components.size()));
  }
  // The global extent of a dimension is the sum over the shards along it, taken at coordinate 0 of the other axes.
  TensorType type{components[0].type().dtype, mesh::Dims(layout.rank(), 0)};
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const Tensor& c = components[r];
    if (c.type().rank() != layout.rank() || c.type().dtype != type.dtype) {
      return InvalidArgument("pack: component of " + mesh.devices()[r].ToString() + ": expected " +
                             std::string(mesh::DTypeName(type.dtype)) + " of rank " + std::to_string(layout.rank()) +
                             ", got: " + c.type().ToString());
    }
    const std::vector<int64_t> at = mesh.Coordinates(r);
    for (int d = 0; d < layout.rank(); ++d) {
      bool first_of_others = true;
      for (int a = 0; a < mesh.num_axes(); ++a) {
        const bool along = std::find(layout.dim(d).begin(), layout.dim(d).end(), a) != layout.dim(d).end();
        first_of_others = first_of_others && (along || at[a] == 0);
      }
      if (first_of_others) type.dims[d] += c.dims()[d];
    }
  }
  Tensor whole(type);
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const Layout::Slice slice = layout.SliceOf(r, type.dims);
    if (components[r].dims() != slice.sizes) {
      return InvalidArgument("pack: component of " + mesh.devices()[r].ToString() + ": expected " +
                             TensorType{type.dtype, slice.sizes}.ToString() + " of " + type.ToString() + " in " +
                             layout.ToString() + ", got: " + components[r].type().ToString());
    }
    whole.Paste(components[r], slice.offsets);
  }
  return CopyToMesh(whole, layout);
}

Result<std::vector<Tensor>> Session::Unpack(const DTensor& value) {
  MT_ASSIGN_OR_RETURN(const Tensor whole, ToHost(value));
  std::vector<Tensor> components;
  for (int64_t r = 0; r < value.layout_.mesh().size(); ++r) {
    const Layout::Slice slice = value.layout_.SliceOf(r, whole.dims());
    components.push_back(whole.Slice(slice.offsets, slice.sizes));
  }
  return components;
}

Result<Tensor> Session::ToHost(const DTensor& value) {
  if (!value.valid()) return InvalidArgument("expected a tensor on a mesh, got: an empty one");
  return Gather(value);
}

Result<DTensor> Session::Relayout(const DTensor& value, const Layout& layout) {
  if (!value.valid()) return InvalidArgument("relayout: expected a tensor on a mesh, got: an empty one");
  if (!(layout.mesh() == value.layout_.mesh())) {
    return InvalidArgument("relayout: expected a layout on mesh " + value.layout_.mesh().ToString() + ", got: " +
                           layout.mesh().ToString());
  }
  if (layout.rank() != value.type_.rank()) {
    return InvalidArgument("relayout: expected a layout of rank " + std::to_string(value.type_.rank()) + ", got: " +
                           layout.ToString());
  }
  program::Builder builder("relayout");
  builder.Output("y", program::Relayout(builder.Input("x", value.type_), layout.specs()));
  MT_ASSIGN_OR_RETURN(const program::Program program, builder.Build());
  MT_ASSIGN_OR_RETURN(auto step, Load(program, layout.mesh(), {},
                                      {.inputs = {{"x", value.layout_}}, .outputs = {{"y", layout}}}));
  MT_RETURN_IF_ERROR(step->Feed(0, value));
  MT_RETURN_IF_ERROR(step->Run());
  return step->FetchOnMesh(0);
}

Result<Session::Stored*> Session::Find(const program::Variable& variable) {
  const auto it = variables_.find(variable.key());
  if (it == variables_.end()) {
    return FailedPrecondition("variable `" + (variable.valid() ? variable.name() : "?") +
                              "`: it has no value in this session");
  }
  return &it->second;
}

Status Session::Declare(const program::Variable& variable, const Layout& layout) {
  if (variables_.contains(variable.key())) {
    return AlreadyExists("variable `" + variable.name() + "` has a value already");
  }
  auto value = Make(variable.type(), layout);
  if (!value.ok()) return value.status().At("variable `" + variable.name() + "`");
  variables_[variable.key()] = {variable, std::move(*value)};
  return OkStatus();
}

Status Session::Forget(const program::Variable& variable) {
  variables_.erase(variable.key());
  return OkStatus();
}

Result<Layout> Session::LayoutOf(const program::Variable& variable) const {
  MT_ASSIGN_OR_RETURN(const Stored* stored, const_cast<Session*>(this)->Find(variable));
  return stored->value.layout_;
}

Result<Tensor> Session::ReadToHost(const program::Variable& variable) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  return Gather(stored->value);
}

Result<Tensor> Session::ReadShard(const program::Variable& variable, int64_t rank) {
  MT_ASSIGN_OR_RETURN(const Tensor whole, ReadToHost(variable));
  MT_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(variable));
  const Layout::Slice slice = layout.SliceOf(rank, whole.dims());
  return slice.sizes == whole.dims() ? whole : whole.Slice(slice.offsets, slice.sizes);
}

Result<DTensor> Session::Read(const program::Variable& variable) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  MT_ASSIGN_OR_RETURN(const Tensor whole, Gather(stored->value));
  return CopyToMesh(whole, stored->value.layout_);
}

Status Session::Write(const program::Variable& variable, const Tensor& value) {
  MT_ASSIGN_OR_RETURN(Stored * stored, Find(variable));
  return Fill(stored->value, value).At("variable `" + variable.name() + "`");
}

Status Session::Write(const program::Variable& variable, const DTensor& value) {
  MT_ASSIGN_OR_RETURN(const Tensor whole, ToHost(value));
  return Write(variable, whole);
}

Result<plan::Plan> Session::PlanOnly(const program::Program& program, const Mesh& mesh,
                                     const sharding::Given& layouts) const {
  MT_ASSIGN_OR_RETURN(sharding::Partitioned partitioned, sharding::Shard(program, mesh, layouts, options_.sharding));
  return plan::MakePlan(std::move(partitioned), options_.plan);
}

Result<std::unique_ptr<LoadedStep>> Session::Load(const program::Program& program, const Mesh& mesh,
                                                  std::span<const program::Variable> variables,
                                                  sharding::Given layouts) {
  if (variables.size() != program.states.size()) {
    return InvalidArgument("program " + program.name + ": expected " + std::to_string(program.states.size()) +
                           " variables, got: " + std::to_string(variables.size()));
  }
  std::vector<Stored*> states;
  for (size_t i = 0; i < variables.size(); ++i) {
    MT_ASSIGN_OR_RETURN(Stored * stored, Find(variables[i]));
    if (!(stored->value.layout_.mesh() == mesh)) {
      return InvalidArgument("variable `" + variables[i].name() + "`: expected it on mesh " + mesh.ToString() +
                             ", got: " + stored->value.layout_.mesh().ToString());
    }
    layouts.states.insert_or_assign(program.states[i].name, stored->value.layout_);
    states.push_back(stored);
  }
  auto step = std::unique_ptr<LoadedStep>(new LoadedStep(this));
  MT_ASSIGN_OR_RETURN(step->plan_, PlanOnly(program, mesh, layouts));

  const plan::Plan& asked = step->plan_;
  MT_ASSIGN_OR_RETURN(const Mesh run_mesh, RunMesh(mesh));
  if (!(run_mesh == mesh)) {
    // What propagation chose on the user's mesh is given on the collapsed one, so that both hold the same layouts.
    sharding::Given given;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      given.inputs[program.inputs[i].name] = sharding::OnMesh(asked.partitioned.input_layouts[i], run_mesh);
    }
    for (size_t i = 0; i < program.states.size(); ++i) {
      given.states[program.states[i].name] = sharding::OnMesh(asked.partitioned.state_layouts[i], run_mesh);
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      given.outputs[program.outputs[i].name] = sharding::OnMesh(asked.partitioned.output_layouts[i], run_mesh);
    }
    MT_ASSIGN_OR_RETURN(step->run_plan_, PlanOnly(program, run_mesh, given));
  }
  const plan::Plan& plan = step->run_plan();
  const std::vector<int64_t> ranks = LocalRanks(plan.partitioned.mesh);
  step->communicator_ = collective::MakeLocalCommunicator(plan.partitioned.mesh);
  MT_ASSIGN_OR_RETURN(step->executable_, backend_->Compile(plan, ranks, step->communicator_.get()));

  step->devices_.resize(ranks.size());
  const auto make = [&](const TensorType& type, const Layout& layout) { return Make(type, layout); };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(DTensor input,
                        make(asked.partitioned.input_types[i], asked.partitioned.input_layouts[i]));
    step->inputs_.push_back(std::move(input));
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(DTensor output,
                        make(asked.partitioned.output_types[i], asked.partitioned.output_layouts[i]));
    step->outputs_.push_back(std::move(output));
  }
  step->fed_.assign(program.inputs.size(), false);
  for (size_t d = 0; d < ranks.size(); ++d) {
    for (const DTensor& t : step->inputs_) step->devices_[d].inputs.push_back(t.buffers_[d].get());
    for (const Stored* s : states) step->devices_[d].states.push_back(s->value.buffers_[d].get());
    for (const DTensor& t : step->outputs_) step->devices_[d].outputs.push_back(t.buffers_[d].get());
  }
  return step;
}

Status LoadedStep::Feed(size_t input, const Tensor& value) {
  MT_CHECK(input < inputs_.size());
  const std::string& name = plan_.local().inputs[input].name;
  // A tensor fed before may have lent its buffers; write to buffers that are ours.
  MT_RETURN_IF_ERROR(session_->Fill(inputs_[input], value).At("input `" + name + "`"));
  for (size_t d = 0; d < devices_.size(); ++d) devices_[d].inputs[input] = inputs_[input].buffers_[d].get();
  fed_[input] = true;
  return OkStatus();
}

Status LoadedStep::Feed(size_t input, const DTensor& value) {
  MT_CHECK(input < inputs_.size());
  const std::string& name = plan_.local().inputs[input].name;
  if (!value.valid() || value.type_ != inputs_[input].type_) {
    return InvalidArgument("input `" + name + "`: expected a tensor of type " + inputs_[input].type_.ToString() +
                           ", got: " + value.type_.ToString());
  }
  if (!(value.layout_ == inputs_[input].layout_)) {
    return InvalidArgument("input `" + name + "`: expected layout " + inputs_[input].layout_.ToString() + ", got: " +
                           value.layout_.ToString());
  }
  lent_.resize(inputs_.size());
  lent_[input] = value;
  for (size_t d = 0; d < devices_.size(); ++d) devices_[d].inputs[input] = value.buffers_[d].get();
  fed_[input] = true;
  return OkStatus();
}

Status LoadedStep::Run() {
  for (size_t i = 0; i < fed_.size(); ++i) {
    if (!fed_[i]) return FailedPrecondition("input `" + plan_.local().inputs[i].name + "` was never fed");
  }
  MT_RETURN_IF_ERROR(executable_->Run(devices_));
  ++runs_;
  return OkStatus();
}

Result<Tensor> LoadedStep::Fetch(size_t output) const {
  MT_CHECK(output < outputs_.size());
  return session_->Gather(outputs_[output]);
}

Result<double> LoadedStep::FetchNumber(size_t output) const {
  MT_ASSIGN_OR_RETURN(const Tensor value, Fetch(output));
  if (value.type().num_elements() != 1) {
    return InvalidArgument("output `" + plan_.local().outputs[output].name + "`: expected one element, got: " +
                           value.type().ToString());
  }
  return value.Item();
}

Result<DTensor> LoadedStep::FetchOnMesh(size_t output) const {
  MT_ASSIGN_OR_RETURN(const Tensor whole, Fetch(output));
  return session_->CopyToMesh(whole, outputs_[output].layout_);
}

int64_t LoadedStep::CollectiveBytesSent(int64_t rank) const { return communicator_->BytesSent(rank); }

}  // namespace meshtrain::execute
