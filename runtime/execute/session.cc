// Long: the tensors, variables and steps of a session are one state, and count its memory together.
#include "runtime/execute/session.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/base/check.h"
#include "runtime/base/memory.h"
#include "runtime/device/devices.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/program/finite.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::execute {
Session::Session(SessionOptions options, std::unique_ptr<device::Backend> backend)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      limit_(std::make_unique<MemoryLimit>(
          options_.memory > 0 ? MemoryLimit{options_.memory, "what this process may use"}
          : backend_->traits().memory_bytes > 0
              ? MemoryLimit{backend_->traits().memory_bytes, "what a device has"}
              : UsableMemory())) {}
Session::~Session() = default;

int Session::devices_there() const { return backend_->traits().devices; }

Result<Tensor> DTensor::Whole() const {
  if (!valid()) return InvalidArgument("expected a tensor on a mesh, got: an empty one");
  return session_->ToHost(*this);
}

Result<std::unique_ptr<Session>> Session::Create(SessionOptions options) {
  MT_ASSIGN_OR_RETURN(auto backend, device::MakeBackend({.kind = options.device_kind,
                                                         .threads = options.threads,
                                                         .isolated = options.isolated,
                                                         .devices = options.devices}));
  return Create(std::move(options), std::move(backend));
}

Result<std::unique_ptr<Session>> Session::Create(SessionOptions options,
                                                 std::unique_ptr<device::Backend> backend) {
  return std::unique_ptr<Session>(new Session(std::move(options), std::move(backend)));
}

Result<Mesh> Session::RunMesh(const Mesh& mesh) const {
  if (!backend_->traits().shared_memory) return mesh;
  return sharding::CollapseLocal(mesh);
}

int Session::DeviceAt(const Mesh& mesh, int64_t rank) const {
  return backend_->traits().shared_memory ? 0 : mesh.devices()[rank].index;
}

Result<DTensor> Session::Make(const TensorType& type, const Layout& layout) {
  if (layout.IsPartial()) {
    return InvalidArgument("tensor " + type.ToString() +
                           ": a stored tensor cannot be partial, got layout: " + layout.ToString());
  }
  MT_RETURN_IF_ERROR(layout.LocalShape(type.dims).status());
  DTensor tensor;
  tensor.session_ = this;
  tensor.type_ = type;
  tensor.layout_ = layout;
  MT_ASSIGN_OR_RETURN(const Mesh mesh, RunMesh(layout.mesh()));
  tensor.run_layout_ = mesh == layout.mesh() ? layout : sharding::OnMesh(layout, mesh);
  MT_ASSIGN_OR_RETURN(mesh::Dims local, tensor.run_layout_.LocalShape(type.dims));
  const TensorType shard{type.dtype, std::move(local)};
  const std::vector<int64_t> ranks = LocalRanks(mesh);
  if (ranks.empty()) {
    return InvalidArgument("mesh " + layout.mesh().ToString() + ": expected devices of process " +
                           std::to_string(options_.process) + ", got: none");
  }
  for (const int64_t rank : ranks) {
    MT_ASSIGN_OR_RETURN(std::unique_ptr<device::Buffer> buffer,
                        backend_->Allocate(DeviceAt(mesh, rank), shard));
    tensor.buffers_.push_back(std::move(buffer));
  }
  return tensor;
}

Status Session::CheckMade(const DTensor& value) const {
  if (!value.valid()) return InvalidArgument("expected a tensor on a mesh, got: an empty one");
  if (value.session_ == this) return OkStatus();
  return InvalidArgument("expected a tensor of this session, got: " + value.type_.ToString() +
                         " of another; its DTensor::Whole gives the values");
}

Status Session::Copy(const DTensor& from, const DTensor& to) {
  for (size_t i = 0; i < from.buffers_.size(); ++i) {
    MT_RETURN_IF_ERROR(backend_->Copy(*from.buffers_[i], *to.buffers_[i]));
  }
  return OkStatus();
}

Result<DTensor> Session::Clone(const DTensor& value) {
  MT_ASSIGN_OR_RETURN(DTensor copy, Make(value.type_, value.layout_));
  MT_RETURN_IF_ERROR(Copy(value, copy));
  return copy;
}

Status Session::FillShards(const DTensor& to,
                           const std::function<Tensor(const Layout::Slice&)>& piece) {
  const Layout& layout = to.run_layout_;
  const std::vector<int64_t> ranks = LocalRanks(layout.mesh());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Layout::Slice slice = layout.SliceOf(ranks[i], to.type_.dims);
    Tensor shard(TensorType{to.type_.dtype, layout.LocalShape(to.type_.dims).value()});
    if (slice.sizes != shard.dims()) {
      std::memset(shard.mutable_bytes().data(), 0, shard.mutable_bytes().size());
    }
    shard.Paste(piece(slice), mesh::Dims(slice.offsets.size(), 0));
    MT_RETURN_IF_ERROR(backend_->CopyIn(shard.bytes(), *to.buffers_[i]));
  }
  return OkStatus();
}

Status Session::Fill(const DTensor& to, const Tensor& from) {
  if (from.type() != to.type_) {
    return InvalidArgument("expected a tensor of type " + to.type_.ToString() +
                           ", got: " + from.type().ToString());
  }
  if (to.run_layout_.Canonical().IsReplicated()) {
    for (const auto& buffer : to.buffers_) {
      MT_RETURN_IF_ERROR(backend_->CopyIn(from.bytes(), *buffer));
    }
    return OkStatus();
  }
  return FillShards(
      to, [&](const Layout::Slice& slice) { return from.Slice(slice.offsets, slice.sizes); });
}

Result<Tensor> Session::ShardAt(const DTensor& value, size_t i) const {
  const Layout& layout = value.run_layout_;
  const int64_t rank = LocalRanks(layout.mesh())[i];
  Tensor shard(TensorType{value.type_.dtype, layout.LocalShape(value.type_.dims).value()});
  MT_RETURN_IF_ERROR(backend_->CopyOut(*value.buffers_[i], shard.mutable_bytes()));
  const Layout::Slice slice = layout.SliceOf(rank, value.type_.dims);
  if (slice.sizes == shard.dims()) return shard;
  return shard.Slice(mesh::Dims(slice.sizes.size(), 0), slice.sizes);
}

bool Session::IsWholeEverywhere(const DTensor& value) {
  struct Held {
    std::set<mesh::Dims> seen;
    int64_t elements = 0;
  };
  std::map<int, Held> held;  // by process
  const Mesh& mesh = value.run_layout_.mesh();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    Held& here = held[mesh.devices()[rank].process];
    const Layout::Slice slice = value.run_layout_.SliceOf(rank, value.type_.dims);
    const int64_t elements = mesh::NumElements(slice.sizes);
    if (elements > 0 && here.seen.insert(slice.offsets).second) here.elements += elements;
  }
  return std::all_of(held.begin(), held.end(), [&](const auto& process) {
    return process.second.elements == value.type_.num_elements();
  });
}

Result<Tensor> Session::Gather(const DTensor& value) {
  MT_CHECK(value.valid());
  const Layout& layout = value.run_layout_;
  Tensor whole(value.type_);
  if (layout.Canonical().IsReplicated()) {
    MT_RETURN_IF_ERROR(backend_->CopyOut(*value.buffers_[0], whole.mutable_bytes()));
    return whole;
  }
  if (!IsWholeEverywhere(value)) {
    MT_ASSIGN_OR_RETURN(
        const DTensor copies,
        Relayout(value, Layout::Replicated(value.layout_.mesh(), value.type_.rank())));
    MT_RETURN_IF_ERROR(backend_->CopyOut(*copies.buffers_[0], whole.mutable_bytes()));
    return whole;
  }
  const std::vector<int64_t> ranks = LocalRanks(layout.mesh());
  for (size_t i = 0; i < ranks.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Tensor shard, ShardAt(value, i));
    whole.Paste(shard, layout.SliceOf(ranks[i], value.type_.dims).offsets);
  }
  return whole;
}

Result<DTensor> Session::CopyToMesh(const Tensor& value, const Layout& layout) {
  MT_ASSIGN_OR_RETURN(DTensor tensor, Make(value.type(), layout));
  MT_RETURN_IF_ERROR(Fill(tensor, value));
  return tensor;
}

Result<Tensor> Session::ToHost(const DTensor& value) {
  MT_RETURN_IF_ERROR(CheckMade(value));
  return Gather(value);
}

Result<DTensor> Session::Relayout(const DTensor& value, const Layout& layout) {
  MT_RETURN_IF_ERROR(CheckMade(value).At("relayout"));
  if (!(layout.mesh() == value.layout_.mesh())) {
    return InvalidArgument("relayout: expected a layout on mesh " +
                           value.layout_.mesh().ToStringUnlike(layout.mesh()) +
                           ", got: " + layout.mesh().ToStringUnlike(value.layout_.mesh()));
  }
  if (layout.rank() != value.type_.rank()) {
    return InvalidArgument("relayout: expected a layout of rank " +
                           std::to_string(value.type_.rank()) + ", got: " + layout.ToString());
  }
  program::Builder builder("relayout");
  builder.Output("y", program::Relayout(builder.Input("x", value.type_), layout.specs()));
  MT_ASSIGN_OR_RETURN(const program::Program program, builder.Build());
  MT_ASSIGN_OR_RETURN(auto step,
                      Load(program, layout.mesh(), {},
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

Result<Layout> Session::StoredLayoutOf(const program::Variable& variable) const {
  MT_ASSIGN_OR_RETURN(const Stored* stored, const_cast<Session*>(this)->Find(variable));
  return stored->value.run_layout_;
}

Result<size_t> Session::LocalIndex(const program::Variable& variable, const DTensor& value,
                                   int64_t rank) const {
  const std::vector<int64_t> ranks = LocalRanks(value.run_layout_.mesh());
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) {
    return InvalidArgument("variable `" + variable.name() +
                           "`: expected a device of this process, got: rank " +
                           std::to_string(rank));
  }
  return static_cast<size_t>(at - ranks.begin());
}

Result<Tensor> Session::ReadStored(const program::Variable& variable, int64_t rank) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  MT_ASSIGN_OR_RETURN(const size_t i, LocalIndex(variable, stored->value, rank));
  return ShardAt(stored->value, i);
}

Status Session::UseStored(const program::Variable& variable, int64_t rank,
                          const std::function<void(std::span<const std::byte>)>& use) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  const DTensor& value = stored->value;
  MT_ASSIGN_OR_RETURN(const size_t i, LocalIndex(variable, value, rank));
  const mesh::Dims sizes = value.run_layout_.SliceOf(rank, value.type_.dims).sizes;
  const std::byte* bytes = value.buffers_[i]->host();
  if (bytes != nullptr && sizes == value.run_layout_.LocalShape(value.type_.dims).value()) {
    use({bytes, static_cast<size_t>(TensorType{value.type_.dtype, sizes}.num_bytes())});
    return OkStatus();
  }
  MT_ASSIGN_OR_RETURN(const Tensor copy, ShardAt(value, i));
  use(copy.bytes());
  return OkStatus();
}

Status Session::WriteStored(const program::Variable& variable, int64_t rank, const Tensor& value) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  MT_ASSIGN_OR_RETURN(const size_t i, LocalIndex(variable, stored->value, rank));
  const DTensor& to = stored->value;
  const Layout::Slice slice = to.run_layout_.SliceOf(rank, to.type_.dims);
  const TensorType extent{to.type_.dtype, slice.sizes};
  if (value.type() != extent) {
    return InvalidArgument("variable `" + variable.name() + "`: rank " + std::to_string(rank) +
                           ": expected " + extent.ToString() + ", got: " + value.type().ToString());
  }
  Tensor shard(TensorType{extent.dtype, to.run_layout_.LocalShape(to.type_.dims).value()});
  if (slice.sizes == shard.dims()) return backend_->CopyIn(value.bytes(), *to.buffers_[i]);
  std::memset(shard.mutable_bytes().data(), 0, shard.mutable_bytes().size());
  shard.Paste(value, mesh::Dims(slice.offsets.size(), 0));
  return backend_->CopyIn(shard.bytes(), *to.buffers_[i]);
}

Result<DTensor> Session::Read(const program::Variable& variable) {
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  return Clone(stored->value);
}

Status Session::Write(const program::Variable& variable, const Tensor& value) {
  MT_ASSIGN_OR_RETURN(Stored * stored, Find(variable));
  return Fill(stored->value, value).At("variable `" + variable.name() + "`");
}

Status Session::Write(const program::Variable& variable, const DTensor& value) {
  MT_RETURN_IF_ERROR(CheckMade(value).At("variable `" + variable.name() + "`"));
  MT_ASSIGN_OR_RETURN(const Stored* stored, Find(variable));
  if (value.type_ == stored->value.type_ && value.layout_ == stored->value.layout_) {
    return Copy(value, stored->value);
  }
  MT_ASSIGN_OR_RETURN(const Tensor whole, ToHost(value));
  return Write(variable, whole);
}

Result<plan::Plan> Session::PlanOnly(const program::Program& program, const Mesh& mesh,
                                     const sharding::Given& layouts,
                                     std::optional<int64_t> bucket_bytes) const {
  const sharding::Options sharding{.cost = backend_->traits().cost,
                                   .replication_limit_bytes = options_.replication_limit_bytes,
                                   .refuse_uneven = options_.refuse_uneven,
                                   .guard_updates = options_.guard_updates};
  MT_ASSIGN_OR_RETURN(sharding::Partitioned partitioned,
                      sharding::Shard(program, mesh, layouts, sharding));
  return backend_->Lower(std::move(partitioned),
                         plan::OptionsOn(mesh, options_.plan, bucket_bytes));
}

Result<std::vector<Session::Stored*>> Session::StatesOf(
    const program::Program& program, const Mesh& mesh,
    std::span<const program::Variable> variables) {
  if (variables.size() != program.states.size()) {
    return InvalidArgument("program " + program.name + ": expected " +
                           std::to_string(program.states.size()) +
                           " variables, got: " + std::to_string(variables.size()));
  }
  std::vector<Stored*> states;
  for (const program::Variable& variable : variables) {
    MT_ASSIGN_OR_RETURN(Stored * stored, Find(variable));
    if (!(stored->value.layout_.mesh() == mesh)) {
      return InvalidArgument("variable `" + variable.name() + "`: expected it on mesh " +
                             mesh.ToStringUnlike(stored->value.layout_.mesh()) +
                             ", got: " + stored->value.layout_.mesh().ToStringUnlike(mesh));
    }
    states.push_back(stored);
  }
  return states;
}

Result<std::unique_ptr<LoadedStep>> Session::Load(const program::Program& program, const Mesh& mesh,
                                                  std::span<const program::Variable> variables,
                                                  sharding::Given layouts,
                                                  std::optional<int64_t> bucket_bytes) {
  MT_ASSIGN_OR_RETURN(const std::vector<Stored*> states, StatesOf(program, mesh, variables));
  for (size_t i = 0; i < states.size(); ++i) {
    layouts.states.insert_or_assign(program.states[i].name, states[i]->value.layout_);
  }
  auto step = std::unique_ptr<LoadedStep>(new LoadedStep(this, program, variables, false));
  MT_ASSIGN_OR_RETURN(step->plan_, PlanOnly(program, mesh, layouts, bucket_bytes));

  const plan::Plan& asked = step->plan_;
  MT_ASSIGN_OR_RETURN(const Mesh run_mesh, RunMesh(mesh));
  if (!(run_mesh == mesh)) {
    const sharding::Given given = sharding::OnMesh(asked.partitioned, program, run_mesh);
    MT_ASSIGN_OR_RETURN(step->run_plan_, PlanOnly(program, run_mesh, given, bucket_bytes));
  }
  MT_RETURN_IF_ERROR(Finish(*step, states, step->run_plan().hash));
  return step;
}

Result<std::unique_ptr<LoadedStep>> Session::LoadReplica(
    const program::Program& program, const Mesh& mesh, std::span<const program::Variable> variables,
    std::optional<int64_t> bucket_bytes) {
  if (backend_->traits().shared_memory || LocalRanks(mesh).size() != 1) {
    return FailedPrecondition(
        "program " + program.name + ": a replica has an isolated session with one device of mesh " +
        mesh.ToString() + ", got: " + std::to_string(LocalRanks(mesh).size()) + " devices" +
        (backend_->traits().shared_memory ? ", not isolated" : ""));
  }
  MT_ASSIGN_OR_RETURN(const std::vector<Stored*> states, StatesOf(program, mesh, variables));
  for (const Stored* s : states) {
    if (s->value.layout_.Canonical().IsReplicated()) continue;
    return InvalidArgument(
        "variable `" + s->variable.name() +
        "`: expected a copy on each replica, got layout: " + s->value.layout_.ToString());
  }
  // Every value is whole where it is: what replicas hold of the same name are values of their own.
  sharding::Partitioned whole;
  whole.local = program;
  if (options_.guard_updates) {
    MT_ASSIGN_OR_RETURN(
        whole.local, program::WithGuard(program, mesh.size(), std::string(sharding::kGuardOutput)));
    if (whole.local.outputs.size() > program.outputs.size()) {
      whole.guard_output = static_cast<int>(program.outputs.size());
    }
  }
  whole.mesh = mesh;
  const auto add = [&](program::ValueId value, std::vector<Layout>& layouts,
                       std::vector<TensorType>& types) {
    layouts.push_back(Layout::Replicated(mesh, whole.local.type(value).rank()));
    types.push_back(whole.local.type(value));
  };
  for (const program::Port& p : whole.local.inputs) {
    add(p.value, whole.input_layouts, whole.input_types);
  }
  for (const program::State& s : whole.local.states) {
    add(s.entry, whole.state_layouts, whole.state_types);
  }
  for (const program::Port& p : whole.local.outputs) {
    add(p.value, whole.output_layouts, whole.output_types);
  }
  for (const program::ValueInfo& value : whole.local.values) {
    whole.layouts.push_back(Layout::Replicated(mesh, value.type.rank()));
    whole.global_dims.push_back(value.type.dims);
  }
  plan::Options options = options_.plan;
  options.overlap = mesh.size() > 1;
  options.recorded_order = true;
  if (bucket_bytes) options.bucket_bytes = options.overlap_bucket_bytes = *bucket_bytes;
  auto step = std::unique_ptr<LoadedStep>(new LoadedStep(this, program, variables, true));
  MT_ASSIGN_OR_RETURN(step->plan_, backend_->Lower(std::move(whole), options));
  MT_RETURN_IF_ERROR(Finish(*step, states, step->plan_.CollectivesHash()));
  return step;
}

Status Session::CountMemory(LoadedStep& step, size_t places) {
  step.counted_.reset();
  const device::Executable* const made = step.executable_.get();
  const plan::Plan& plan = step.run_plan();
  // Devices with a limit of their own hold the same each.
  const bool each = options_.memory == 0 && backend_->traits().memory_bytes > 0;
  const int64_t devices = each ? 1 : static_cast<int64_t>(places);
  int64_t kept = devices * (plan.input_bytes + plan.output_bytes);
  int64_t shared = made != nullptr ? devices * made->scratch_bytes() : 0;
  (made != nullptr && made->own_arena() ? kept : shared) += devices * plan.arena_bytes;
  if (!backend_->traits().shared_arenas) kept += std::exchange(shared, 0);
  int64_t variables = 0;
  for (const auto& [key, stored] : variables_) {
    for (const auto& buffer : stored.value.buffers_) {
      variables += buffer->bytes();
      if (each) break;
    }
  }
  const int64_t before = steps_memory_->bytes();
  steps_memory_->kept += kept;
  const auto at = steps_memory_->shared.insert(shared);
  step.counted_ =
      std::shared_ptr<const void>(nullptr, [all = steps_memory_, at, kept](const void*) {
        all->kept -= kept;
        all->shared.erase(at);
      });
  const int64_t needed = variables + steps_memory_->bytes();
  if (needed <= limit_->bytes) return OkStatus();
  step.counted_.reset();
  return FailedPrecondition(
      "program " + step.program_.name + ": expected to need at most " +
      std::to_string(limit_->bytes) + " bytes (" + limit_->whose +
      "), got: " + std::to_string(needed) + " (" + std::to_string(variables) + " of variables, " +
      std::to_string(needed - variables - before) + " of this step, " + std::to_string(before) +
      " of other steps); a smaller batch needs less, and so does a mesh that splits more");
}

Status Session::Finish(LoadedStep& step, std::span<Stored* const> states,
                       uint64_t communicator_hash) {
  step.communicator_hash_ = communicator_hash;
  const plan::Plan& plan = step.run_plan();
  const Mesh& mesh = plan.partitioned.mesh;
  const std::vector<int64_t> ranks = LocalRanks(mesh);
  MT_RETURN_IF_ERROR(CountMemory(step, ranks.size()));
  if (static_cast<int64_t>(ranks.size()) == mesh.size()) {
    if (options_.local_communicator && mesh.size() > 1) {
      MT_ASSIGN_OR_RETURN(step.communicator_, options_.local_communicator(mesh, communicator_hash));
    }
  } else if (options_.communicator) {
    MT_ASSIGN_OR_RETURN(step.communicator_, options_.communicator(mesh, communicator_hash));
  } else {
    return FailedPrecondition("mesh " + mesh.ToString() +
                              ": it spans processes, and this session is joined to none");
  }
  MT_ASSIGN_OR_RETURN(step.executable_, backend_->Compile(plan, ranks, step.communicator_.get()));
  MT_RETURN_IF_ERROR(CountMemory(step, ranks.size()));

  const sharding::Partitioned& asked = step.plan_.partitioned;
  step.devices_.resize(ranks.size());
  for (size_t i = 0; i < asked.input_types.size(); ++i) {
    MT_ASSIGN_OR_RETURN(DTensor input, Make(asked.input_types[i], asked.input_layouts[i]));
    step.inputs_.push_back(std::move(input));
  }
  for (size_t i = 0; i < asked.output_types.size(); ++i) {
    MT_ASSIGN_OR_RETURN(DTensor output, Make(asked.output_types[i], asked.output_layouts[i]));
    step.outputs_.push_back(std::move(output));
  }
  for (const Stored* s : states) step.states_.push_back(s->value);
  step.fed_.assign(step.inputs_.size(), false);
  for (size_t d = 0; d < ranks.size(); ++d) {
    for (const DTensor& t : step.inputs_) step.devices_[d].inputs.push_back(t.buffers_[d].get());
    for (const Stored* s : states) step.devices_[d].states.push_back(s->value.buffers_[d].get());
    for (const DTensor& t : step.outputs_) step.devices_[d].outputs.push_back(t.buffers_[d].get());
  }
  return OkStatus();
}

}  // namespace meshtrain::execute
