// Long: the methods of one class, over members that only this file sees.
#include "runtime/strategy/strategy.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/save.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/membership/environment.h"
#include "runtime/membership/team.h"
#include "runtime/plan/plan.h"
#include "runtime/saving/newest.h"
#include "runtime/strategy/cross_device.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/parameter_server.h"
#include "runtime/strategy/remote_variables.h"
#include "runtime/strategy/replica_context.h"
#include "runtime/strategy/replica_function.h"
#include "runtime/strategy/replicas.h"
#include "runtime/strategy/tpu.h"
#include "runtime/strategy/values.h"
#include "runtime/strategy/variables.h"

namespace meshtrain::strategy {

using mesh::Tensor;
using program::Variable;

namespace {

// This thread's innermost scope; set and restored by StrategyScope only.
thread_local Strategy* current_strategy = nullptr;

// How many devices `names` are, or `count` CPUs; each must be one that this build can use.
Result<int64_t> CountDevices(const std::vector<std::string>& names, int64_t count) {
  if (names.empty()) {
    if (count < 0) {
      return InvalidArgument("devices: expected a count of at least 1, got: " +
                             std::to_string(count));
    }
    return std::max<int64_t>(1, count);  // found: one CPU
  }
  if (count != 0 && count != static_cast<int64_t>(names.size())) {
    return InvalidArgument("devices: expected as many names as the count of " +
                           std::to_string(count) + ", got: " + std::to_string(names.size()));
  }
  std::set<mesh::Device> seen;
  for (const std::string& name : names) {
    MT_ASSIGN_OR_RETURN(const mesh::Device device, mesh::Device::Parse(name));
    if (device.process != 0) {
      return InvalidArgument("devices: expected devices of this process, got: " + name);
    }
    if (!seen.insert(device).second) {
      return InvalidArgument("devices: expected each device once, got twice: " + name);
    }
    if (device.kind != mesh::DeviceKind::kCpu) {
      return Unimplemented("device " + name + ": this build has no backend for " +
                           std::string(mesh::DeviceKindName(device.kind)) +
                           " devices, expected: cpu:N");
    }
  }
  return static_cast<int64_t>(names.size());
}

Status CheckPacking(const Packing& p) {
  if (p.num_packs && p.bytes_per_pack) {
    return InvalidArgument("packing: expected num_packs or bytes_per_pack, got: both");
  }
  if (p.num_packs.value_or(0) < 0 || p.bytes_per_pack.value_or(1) < 1) {
    return InvalidArgument("packing: expected at least 0 packs or 1 byte, got: " +
                           std::to_string(p.num_packs ? *p.num_packs : *p.bytes_per_pack));
  }
  return OkStatus();
}

void WarnOfNccl(std::string_view strategy, std::string_view instead) {
  LogWarning("NCCL was asked for, but there are no GPUs",
             {{"strategy", std::string(strategy)}, {"instead", std::string(instead)}});
}

}  // namespace

bool HasStrategy() { return current_strategy != nullptr; }

Strategy& GetStrategy() {
  if (current_strategy != nullptr) return *current_strategy;
  // What code without a strategy runs on; it holds variables, so it belongs to the thread.
  thread_local std::unique_ptr<Strategy> own;
  if (own == nullptr) own = Strategy::Default().value();
  return *own;
}

struct Strategy::Setup {
  std::string name;
  int64_t devices = 1;  // of this process
  int process = 0, processes = 1;
  bool central = false;
  CrossDeviceOps ops = CrossDeviceOps::kAuto;
  Packing packing;
  StrategyOptions common;
  execute::MakeCommunicator communicator;
  membership::Team* team = nullptr;
};

struct Strategy::Impl {
  struct Traced {
    std::weak_ptr<const ReplicaFunction::Shape> function;
    TracedReplica replica;
  };
  using Key = std::pair<const ReplicaFunction::Shape*, std::string>;

  int64_t replicas_in_sync() const { return setup.devices * setup.processes; }
  int64_t first() const { return setup.devices * setup.process; }
  // OK where there are replicas; else says what to use in place of `what`.
  Status WantReplicas(std::string_view what) const;
  Result<execute::Session*> MeshSession();
  Result<const TracedReplica*> Trace(Strategy& self, const ReplicaFunction& function,
                                     std::span<const Tensor> inputs, int64_t global_size);
  void ForgetOld();
  // All processes are about to move the same for `function`, which runs `traced`.
  Status AgreeOn(const ReplicaFunction& function, std::span<const TracedReplica* const> traced);

  Setup setup;
  mesh::Mesh mesh;
  std::unique_ptr<RemoteVariables> remote;  // in the place of replicas, session and variables
  std::unique_ptr<Replicas> replicas;
  std::unique_ptr<execute::Session> session;  // of `mesh`
  std::unique_ptr<Variables> variables;
  std::map<Key, std::unique_ptr<Traced>> traced;
  struct Agreed {
    std::weak_ptr<const ReplicaFunction::Shape> function;
    uint64_t incarnation = 0;
  };
  std::map<const ReplicaFunction::Shape*, Agreed> agreed;
  std::map<std::pair<const ReplicaFunction::Shape*, int64_t>, const TracedReplica*>
      last;  // by function and replica
};

StrategyScope::StrategyScope(Strategy& strategy)
    : parameters_([&s = *strategy.impl_](const nn::Parameter& p) {
        s.remote != nullptr ? s.remote->Add(p) : s.variables->Add(p);
      }),
      previous_(std::exchange(current_strategy, &strategy)) {}
StrategyScope::~StrategyScope() { current_strategy = previous_; }

Strategy::Strategy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Strategy::~Strategy() = default;

Result<std::unique_ptr<Strategy>> Strategy::Make(Setup setup) {
  MT_RETURN_IF_ERROR(CheckPacking(setup.packing).At(setup.name));
  if (setup.process < 0 || setup.process >= setup.processes || setup.devices < 1) {
    return InvalidArgument(
        setup.name + ": expected a process of " + std::to_string(setup.processes) +
        " with at least one device, got: process " + std::to_string(setup.process) + " with " +
        std::to_string(setup.devices));
  }
  if (setup.processes > 1 && !setup.communicator) {
    return InvalidArgument(setup.name + ": expected a communicator between its " +
                           std::to_string(setup.processes) + " processes, got: none");
  }
  if (setup.processes == 1) setup.communicator = nullptr;
  auto impl = std::make_unique<Impl>();
  impl->setup = std::move(setup);
  const Setup& s = impl->setup;
  std::vector<mesh::Device> devices;
  for (int p = 0; p < s.processes; ++p) {
    for (int64_t d = 0; d < s.devices; ++d) {
      devices.push_back({.process = p, .index = static_cast<int>(d)});
    }
  }
  MT_ASSIGN_OR_RETURN(impl->mesh,
                      mesh::Mesh::Create({{"batch", impl->replicas_in_sync()}}, devices));
  Replicas::Options options{.replicas = impl->replicas_in_sync(),
                            .first = impl->first(),
                            .count = s.devices,
                            .threads = s.common.threads,
                            .deadline = s.common.deadline,
                            .communicator = s.communicator};
  options.packing = s.packing;
  MT_ASSIGN_OR_RETURN(options.process_mesh,
                      mesh::Mesh::Create({{"replica", options.replicas}}, devices));
  options.local = [ops = s.ops](const mesh::Mesh& mesh) {
    return MakeCrossDeviceCommunicator(mesh, ops);
  };
  MT_ASSIGN_OR_RETURN(impl->replicas, Replicas::Create(std::move(options)));
  impl->variables = std::make_unique<Variables>(
      *impl->replicas, impl->mesh, [impl = impl.get()] { return impl->MeshSession(); },
      s.common.seed);
  return std::unique_ptr<Strategy>(new Strategy(std::move(impl)));
}

Result<std::unique_ptr<Strategy>> Strategy::Default(StrategyOptions options) {
  return Make({.name = "DefaultStrategy", .common = options});
}

Result<std::unique_ptr<Strategy>> Strategy::OneDevice(std::string_view device,
                                                      StrategyOptions options) {
  const auto count = CountDevices({std::string(device)}, 1);
  MT_RETURN_IF_ERROR(count.status().At("OneDeviceStrategy"));
  return Make({.name = "OneDeviceStrategy", .common = options});
}

Result<std::unique_ptr<Strategy>> Strategy::Mirrored(MirroredOptions options) {
  Setup setup{.name = "MirroredStrategy",
              .ops = options.cross_device_ops,
              .packing = options.packing,
              .common = options.common};
  const auto count = CountDevices(options.devices, options.count);
  MT_RETURN_IF_ERROR(count.status().At(setup.name));
  setup.devices = *count;
  if (setup.ops == CrossDeviceOps::kNccl) WarnOfNccl(setup.name, "AUTO");
  return Make(std::move(setup));
}

Result<std::unique_ptr<Strategy>> Strategy::CentralStorage(CentralStorageOptions options) {
  Setup setup{.name = "CentralStorageStrategy", .central = true, .common = options.common};
  const auto count = CountDevices(options.compute_devices, options.count);
  MT_RETURN_IF_ERROR(count.status().At(setup.name));
  setup.devices = *count;
  return Make(std::move(setup));
}

Result<std::unique_ptr<Strategy>> Strategy::MultiWorkerMirrored(MultiWorkerOptions options) {
  Setup setup{.name = "MultiWorkerMirroredStrategy",
              .devices = options.devices_per_worker,
              .process = options.process,
              .processes = options.processes,
              .packing = options.packing,
              .common = options.common,
              .communicator = std::move(options.communicator)};
  if (options.team != nullptr) {
    setup.process = options.team->process();
    setup.processes = options.team->processes();
    setup.communicator = options.team->communicators();
    setup.team = options.team;
  }
  if (options.communication == Communication::kNccl) WarnOfNccl(setup.name, "RING");
  return Make(std::move(setup));
}

Result<std::unique_ptr<Strategy>> Strategy::ParameterServer(ParameterServerOptions options,
                                                            std::stop_token stop) {
  auto impl = std::make_unique<Impl>();
  impl->setup.name = "ParameterServerStrategy";
  MT_ASSIGN_OR_RETURN(impl->mesh, mesh::Mesh::Create({{"batch", 1}}));
  auto remote = RemoteVariables::Create(std::move(options), std::move(stop));
  if (!remote.ok()) return remote.status().At(impl->setup.name);
  impl->remote = std::move(*remote);
  return std::unique_ptr<Strategy>(new Strategy(std::move(impl)));
}

Result<std::unique_ptr<Strategy>> Strategy::Tpu(const TpuClusterResolver& resolver,
                                                StrategyOptions options) {
  return Tpu(resolver, std::move(options), membership::ProcessEnvironment());
}

Result<std::unique_ptr<Strategy>> Strategy::Tpu(const TpuClusterResolver& resolver, StrategyOptions,
                                                const membership::Environment& environment) {
  MT_ASSIGN_OR_RETURN(const TpuCluster tpu, ResolveTpu(resolver, environment));
  return Unimplemented("TPUStrategy on " + tpu.ToString() +
                       ": expected a build with the PJRT backend and a plugin for TPUs "
                       "(libtpu.so), got: a build for "
                       "CPUs; everything else of this strategy is MirroredStrategy");
}

std::string_view Strategy::name() const { return impl_->setup.name; }
int64_t Strategy::num_replicas_in_sync() const { return impl_->replicas_in_sync(); }
int64_t Strategy::local_replicas() const { return impl_->setup.devices; }
int64_t Strategy::first_replica() const { return impl_->first(); }
int Strategy::process() const { return impl_->setup.process; }
const mesh::Mesh& Strategy::mesh() const { return impl_->mesh; }
RemoteVariables* Strategy::remote() { return impl_->remote.get(); }
parameter::Coordinator* Strategy::coordinator() {
  return impl_->remote == nullptr ? nullptr : &impl_->remote->coordinator();
}

Status Strategy::Impl::WantReplicas(std::string_view what) const {
  if (remote == nullptr) return OkStatus();
  return Unimplemented(setup.name + ": " + std::string(what) +
                       " is for replicas that go together, which parameter servers have not; "
                       "expected: Model, or coordinator()->Schedule");
}

Result<execute::Session*> Strategy::Impl::MeshSession() {
  if (session == nullptr) {
    execute::SessionOptions options{.threads = setup.common.threads,
                                    .process = setup.process,
                                    .communicator = setup.communicator};
    // As train::Fit has it: a step whose loss is not finite leaves the variables as they were.
    options.plan.finite_outputs = {"loss"};
    MT_ASSIGN_OR_RETURN(session, execute::Session::Create(std::move(options)));
  }
  return session.get();
}

Result<execute::Session*> Strategy::session() {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("session"));
  return impl_->MeshSession();
}

Status Strategy::PrepareOnMesh(std::span<const Variable> variables) {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("PrepareOnMesh"));
  return impl_->variables->ToMesh(variables);
}

const Packing& Strategy::packing() const { return impl_->setup.packing; }

Status Strategy::AgreeOnPlans(std::span<const uint64_t> hashes) {
  membership::Team* const team = impl_->setup.team;
  return team == nullptr || team->processes() == 1 ? OkStatus() : team->AgreeOnPlans(hashes, {});
}

Status Strategy::Impl::AgreeOn(const ReplicaFunction& function,
                               std::span<const TracedReplica* const> traced) {
  // Once per incarnation: who joins anew asks for it too.
  const uint64_t now = setup.team->incarnation();
  const auto known = agreed.find(&function.shape());
  if (known != agreed.end() && known->second.incarnation == now) return OkStatus();
  MT_RETURN_IF_ERROR(replicas->Load(traced));
  const execute::LoadedStep& step = *replicas->step(0, traced[0]);
  const auto& steps = step.run_plan().steps;
  // What moves nothing may be run by one process alone.
  if (std::any_of(steps.begin(), steps.end(),
                  [](const plan::Step& one) { return one.kind == plan::StepKind::kCollective; })) {
    const uint64_t hash = step.communicator_hash();
    MT_RETURN_IF_ERROR(setup.team->AgreeOnPlans({&hash, 1}, {}).At("run " + function.shape().name));
  }
  agreed.insert_or_assign(&function.shape(), Agreed{function.identity(), now});
  return OkStatus();
}

void Strategy::Impl::ForgetOld() {
  std::erase_if(agreed, [](const auto& item) { return item.second.function.expired(); });
  for (auto it = traced.begin(); it != traced.end();) {
    if (!it->second->function.expired()) {
      ++it;
      continue;
    }
    const TracedReplica* old = &it->second->replica;
    std::erase_if(last, [&](const auto& item) { return item.second == old; });
    replicas->Forget(old);
    it = traced.erase(it);
  }
}

Result<const TracedReplica*> Strategy::Impl::Trace(Strategy& self, const ReplicaFunction& function,
                                                   std::span<const Tensor> inputs,
                                                   int64_t global_size) {
  const ReplicaFunction::Shape& shape = function.shape();
  if (inputs.size() != shape.arity) {
    return InvalidArgument("run " + shape.name + ": it takes " + std::to_string(shape.arity) +
                           " values, got: " + std::to_string(inputs.size()));
  }
  std::string text = std::to_string(global_size);
  for (const Tensor& x : inputs) text += " " + x.type().ToString();
  const Key key{&shape, text};
  if (const auto known = traced.find(key); known != traced.end()) return &known->second->replica;

  program::Builder builder(shape.name);
  const program::Builder::Scope recording(builder);
  const StrategyScope scope(self);
  const TraceScope context(builder, replicas_in_sync(), global_size);
  std::vector<Value> values;
  for (const Tensor& x : inputs) {
    values.push_back(builder.Input("input_" + std::to_string(values.size()), x.type()));
  }
  const Outputs outputs = shape.body(values);
  for (const auto& [name, value] : outputs) builder.Output(name, value);
  auto made = std::make_unique<Traced>();
  made->function = function.identity();
  made->replica.variables = builder.variables();
  made->replica.fed = inputs.size();
  MT_ASSIGN_OR_RETURN(made->replica.program, builder.Build());
  return &traced.emplace(key, std::move(made)).first->second->replica;
}

Result<std::vector<PerReplica>> Strategy::Run(const ReplicaFunction& function) {
  return Run(function, PerReplicaBatch{});
}

Result<std::vector<PerReplica>> Strategy::Run(const ReplicaFunction& function,
                                              const PerReplicaBatch& given) {
  Impl& s = *impl_;
  MT_RETURN_IF_ERROR(s.WantReplicas("Run"));
  if (s.replicas->torn()) {
    return FailedPrecondition(
        "run " + function.shape().name +
        ": the run before failed, and the replicas' variables may differ: expected Restore or "
        "Equalize before");
  }
  s.ForgetOld();
  PerReplicaBatch batch = given;
  if (batch.replicas.empty()) batch.replicas.resize(static_cast<size_t>(local_replicas()));
  if (static_cast<int64_t>(batch.replicas.size()) != local_replicas()) {
    return InvalidArgument("run " + function.shape().name + ": expected values for the " +
                           std::to_string(local_replicas()) +
                           " replicas of this process, got: for " +
                           std::to_string(batch.replicas.size()));
  }
  // Traced one after another: layers make their weights on the first call, and user code need not
  // be ready for threads.
  std::vector<const TracedReplica*> traced;
  std::vector<Variable> variables;
  for (size_t i = 0; i < batch.replicas.size(); ++i) {
    const auto one = s.Trace(*this, function, batch.replicas[i], batch.global_size);
    if (!one.ok()) {
      return one.status().At("replica " +
                             std::to_string(first_replica() + static_cast<int64_t>(i)));
    }
    traced.push_back(*one);
    const TracedReplica& t = **one;
    if (t.program.outputs.size() != traced[0]->program.outputs.size()) {
      return InvalidArgument("run " + function.shape().name +
                             ": expected as many outputs on each replica, got: " +
                             std::to_string(traced[0]->program.outputs.size()) + " and " +
                             std::to_string(t.program.outputs.size()));
    }
    for (const Variable& v : t.variables) {
      if (std::find(variables.begin(), variables.end(), v) == variables.end()) {
        variables.push_back(v);
      }
    }
  }
  MT_RETURN_IF_ERROR(s.variables->ToReplicas(variables).At("run " + function.shape().name));
  if (s.setup.central) MT_RETURN_IF_ERROR(s.variables->Equalize(variables));
  if (s.setup.team != nullptr && s.setup.processes > 1) {
    MT_RETURN_IF_ERROR(s.AgreeOn(function, traced));
  }
  MT_ASSIGN_OR_RETURN(std::vector<PerReplica> outputs, s.replicas->Run(traced, batch));
  for (size_t i = 0; i < traced.size(); ++i) {
    s.last[{&function.shape(), static_cast<int64_t>(i)}] = traced[i];
  }
  return outputs;
}

Result<std::vector<PerReplica>> Strategy::Run(const ReplicaFunction& function,
                                              std::span<const PerReplica> values) {
  PerReplicaBatch batch;
  batch.replicas.resize(static_cast<size_t>(local_replicas()));
  for (const PerReplica& component : values) {
    if (component.values.size() != batch.replicas.size()) {
      return InvalidArgument("run " + function.shape().name + ": expected values for the " +
                             std::to_string(local_replicas()) +
                             " replicas of this process, got: for " +
                             std::to_string(component.values.size()));
    }
    for (size_t i = 0; i < batch.replicas.size(); ++i) {
      batch.replicas[i].push_back(component.values[i]);
    }
  }
  return Run(function, batch);
}

const plan::Plan* Strategy::last_plan(const ReplicaFunction& function, int64_t replica) const {
  const auto at = impl_->last.find({&function.shape(), replica});
  if (at == impl_->last.end()) return nullptr;
  const execute::LoadedStep* step = impl_->replicas->step(replica, at->second);
  return step == nullptr ? nullptr : &step->plan();
}

Result<Tensor> Strategy::Reduce(ReduceOp op, const PerReplica& value, std::optional<int64_t> axis) {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("Reduce"));
  Replicas& replicas = *impl_->replicas;
  if (!axis) {
    MT_ASSIGN_OR_RETURN(Tensor sum, replicas.Sum(value.values));
    if (op == ReduceOp::kSum) return sum;
    return DivideBy(sum, static_cast<double>(num_replicas_in_sync()));
  }
  std::vector<Tensor> sums, counts;
  for (const Tensor& x : value.values) {
    MT_ASSIGN_OR_RETURN(Tensor sum, SumAlong(x, *axis));
    sums.push_back(std::move(sum));
    const int64_t dim = *axis < 0 ? *axis + x.type().rank() : *axis;
    counts.push_back(Tensor::Scalar(x.dims()[static_cast<size_t>(dim)]));
  }
  MT_ASSIGN_OR_RETURN(Tensor sum, replicas.Sum(sums));
  if (op == ReduceOp::kSum) return sum;
  MT_ASSIGN_OR_RETURN(const Tensor count, replicas.Sum(counts));
  return DivideBy(sum, count.Item());
}

std::vector<Tensor> Strategy::LocalResults(const PerReplica& value) const { return value.values; }

Result<std::vector<Tensor>> Strategy::LocalResults(const Variable& variable) {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("LocalResults"));
  MT_ASSIGN_OR_RETURN(std::vector<Tensor> copies, impl_->variables->Copies(variable));
  if (impl_->setup.central) copies.resize(1);
  return copies;
}

Result<DistributedDataset> Strategy::DistributeDataset(std::unique_ptr<data::Pipeline> pipeline) {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("DistributeDataset"));
  if (pipeline == nullptr) return InvalidArgument("distribute: expected a pipeline, got: none");
  return DistributedDataset(std::move(pipeline), num_replicas_in_sync(), first_replica(),
                            local_replicas());
}

Result<DistributedDataset> Strategy::DistributeArrays(std::vector<Tensor> arrays,
                                                      int64_t batch_size) {
  MT_ASSIGN_OR_RETURN(auto pipeline, ArraysPipeline(std::move(arrays), batch_size));
  return DistributeDataset(std::move(pipeline));
}

Result<PerReplicaBatch> Strategy::DistributeBatch(std::span<const Tensor> components) const {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("DistributeBatch"));
  return SplitBatch(components, num_replicas_in_sync(), first_replica(), local_replicas());
}

Result<Tensor> Strategy::Read(const Variable& variable) {
  return remote() != nullptr ? remote()->Read(variable) : impl_->variables->Read(variable);
}
Status Strategy::Assign(const Variable& variable, const Tensor& value) {
  if (remote() != nullptr) return remote()->Assign(variable, value);
  return impl_->variables->Assign(variable, value);
}

void Strategy::Retire(const Variable& variable) {
  if (remote() == nullptr) impl_->variables->Retire(variable);
}

Status Strategy::Equalize() {
  MT_RETURN_IF_ERROR(impl_->WantReplicas("Equalize"));
  MT_RETURN_IF_ERROR(impl_->variables->Equalize());
  impl_->replicas->Mend();
  return OkStatus();
}

Result<std::string> Strategy::Save(const std::string& folder, int64_t step,
                                   std::span<const Variable> variables) {
  if (remote() != nullptr) return remote()->Save(folder, step);
  if (!chief()) return std::string();
  checkpoint::Snapshot snapshot{.step = step, .mesh = impl_->mesh.ToString()};
  std::vector<Variable> saved(variables.begin(), variables.end());
  if (saved.empty()) saved = impl_->variables->Valued();
  std::set<std::string> names;
  for (const Variable& v : saved) {
    if (!names.insert(v.name()).second) {
      return FailedPrecondition("save: expected variables of different paths, got two: " +
                                v.name());
    }
    MT_ASSIGN_OR_RETURN(Tensor value, impl_->variables->Read(v));
    const mesh::Dims offsets(v.dims().size(), 0);
    snapshot.variables.push_back(
        {.name = v.name(),
         .type = v.type(),
         .layout = mesh::Layout::Replicated(impl_->mesh, v.type().rank()).ToString(),
         .blocks = {{offsets, std::move(value)}}});
  }
  return checkpoint::Save(folder, snapshot).From(Origin::kOutput);
}

Result<int64_t> Strategy::Restore(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(const std::vector<checkpoint::Candidate> candidates,
                      checkpoint::ListCheckpoints(folder));
  const auto give = [&](const std::string& path) -> Status {  // kDataLoss: nothing was changed
    MT_ASSIGN_OR_RETURN(auto checkpoint, checkpoint::Checkpoint::Open(path));
    if (remote() != nullptr) return remote()->Give(std::move(checkpoint));
    std::map<std::string, Tensor> values;
    for (const auto& [name, record] : checkpoint->index().variables) {
      MT_ASSIGN_OR_RETURN(Tensor value, checkpoint->Load(name));
      values.emplace(name, std::move(value));
    }
    MT_RETURN_IF_ERROR(impl_->variables->Give(std::move(values)).At(path));
    impl_->replicas->Mend();
    return OkStatus();
  };
  MT_ASSIGN_OR_RETURN(const auto taken, saving::TakeNewest(candidates, give));
  if (!taken) return NotFound(folder + ": expected a checkpoint, got: none");
  return taken->step;
}

}  // namespace meshtrain::strategy
