#include "runtime/strategy/replicas.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/cores.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/collective/local.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/strategy/replica_context.h"

namespace meshtrain::strategy {

using execute::LoadedStep;
using mesh::Tensor;
using program::Variable;

namespace {

// Only wakes those who look whether anything has changed; nothing ends by it.
constexpr Duration kLook = std::chrono::seconds(10);

// "sum of values": what Sum's frames say they belong to.
constexpr uint64_t kSumSignature = 0x73756d206f662076;

}  // namespace

// One replica's thread: runs one job at a time.
class Replicas::Worker {
 public:
  Status Begin() {
    MT_ASSIGN_OR_RETURN(thread_, StartThread("a replica", [this](std::stop_token s) { Loop(s); }));
    return OkStatus();
  }

  void Start(std::function<Status()> job) MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    MT_CHECK(job_ == nullptr);
    job_ = std::move(job);
    changed_.NotifyAll();
  }
  // A job ends by itself: its kernels are finite, and what it waits for has deadlines.
  Status Wait() MT_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!changed_.WaitFor(mutex_, {}, kLook,
                             [this]() MT_REQUIRES(mutex_) { return job_ == nullptr; })) {
    }
    return status_;
  }

 private:
  void Loop(std::stop_token stop) MT_EXCLUDES(mutex_) {
    while (!stop.stop_requested()) {
      std::function<Status()> job;
      {
        MutexLock lock(mutex_);
        if (!changed_.WaitFor(mutex_, stop, kLook,
                              [this]() MT_REQUIRES(mutex_) { return job_ != nullptr; })) {
          continue;
        }
        job = job_;
      }
      const Status status = job();
      MutexLock lock(mutex_);
      status_ = status;
      job_ = nullptr;
      changed_.NotifyAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::function<Status()> job_ MT_GUARDED_BY(mutex_);
  Status status_ MT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses what stands above
};

Replicas::Replicas(Options options) : o_(std::move(options)) {}
Replicas::~Replicas() = default;

Result<std::unique_ptr<Replicas>> Replicas::Create(Options options) {
  MT_CHECK(options.count >= 1 && options.first + options.count <= options.replicas);
  auto made = std::unique_ptr<Replicas>(new Replicas(std::move(options)));
  const Options& o = made->o_;
  std::vector<mesh::Device> devices;
  for (int64_t r = 0; r < o.replicas; ++r) {
    const bool here = r >= o.first && r < o.first + static_cast<int64_t>(o.indices.size());
    devices.push_back({.process = static_cast<int>(r),
                       .index = here ? o.indices[static_cast<size_t>(r - o.first)] : 0});
  }
  MT_ASSIGN_OR_RETURN(made->mesh_,
                      mesh::Mesh::Create({{"replica", o.replicas}}, std::move(devices)));
  std::vector<std::string> names;
  for (int64_t i = 0; i < o.count; ++i) names.push_back("replica " + std::to_string(o.first + i));
  made->parties_ = std::make_unique<collective::ThreadParties>(
      names, collective::ThreadPartiesOptions{.deadline = o.deadline});
  const int cores = o.threads > 0 ? o.threads : UsableCores();
  const int devices_needed =
      o.indices.empty() ? 1 : 1 + *std::max_element(o.indices.begin(), o.indices.end());
  for (int64_t i = 0; i < o.count; ++i) {
    auto replica = std::make_unique<Replica>();
    replica->name = names[static_cast<size_t>(i)];
    replica->rank = o.first + i;
    execute::SessionOptions session{.device_kind = o.device_kind,
                                    .devices = devices_needed,
                                    .isolated = true,
                                    .threads = std::max(1, cores / static_cast<int>(o.count)),
                                    .process = static_cast<int>(replica->rank),
                                    .plan = o.plan};
    session.communicator = [self = made.get(), i](const mesh::Mesh&, uint64_t signature)
        -> Result<std::unique_ptr<collective::Communicator>> {
      MT_ASSIGN_OR_RETURN(std::shared_ptr<collective::Communicator> behind,
                          self->Behind(signature));
      return self->parties_->Join(static_cast<int>(i), {self->o_.first + i}, signature,
                                  std::move(behind));
    };
    MT_ASSIGN_OR_RETURN(replica->session, execute::Session::Create(std::move(session)));
    if (o.count > 1) {
      replica->worker = std::make_unique<Worker>();
      MT_RETURN_IF_ERROR(replica->worker->Begin());
    }
    made->replicas_.push_back(std::move(replica));
  }
  return made;
}

Result<std::shared_ptr<collective::Communicator>> Replicas::Behind(uint64_t signature) {
  // Replicas load side by side; making a communicator moves nothing.
  MutexLock lock(behind_mutex_);
  const auto known = behind_.find(signature);
  if (known != behind_.end()) return known->second;
  std::unique_ptr<collective::Communicator> made;
  if (o_.communicator) {
    MT_ASSIGN_OR_RETURN(made, o_.communicator(o_.process_mesh, signature));
  } else {
    made = o_.local ? o_.local(mesh_) : collective::MakeLocalCommunicator(mesh_);
  }
  return behind_.emplace(signature, std::move(made)).first->second;
}

Status Replicas::Declare(const Variable& variable) {
  for (const auto& r : replicas_) {
    MT_RETURN_IF_ERROR(
        r->session->Declare(variable, mesh::Layout::Replicated(mesh_, variable.type().rank())));
  }
  return OkStatus();
}

bool Replicas::IsDeclared(const Variable& variable) const {
  return replicas_[0]->session->IsDeclared(variable);
}

Result<Tensor> Replicas::Read(int64_t replica, const Variable& variable) {
  return session(replica).ReadToHost(variable);
}

Status Replicas::Write(int64_t replica, const Variable& variable, const Tensor& value) {
  return session(replica).Write(variable, value);
}

Status Replicas::WriteAll(const Variable& variable, const Tensor& value) {
  for (int64_t i = 0; i < count(); ++i) MT_RETURN_IF_ERROR(Write(i, variable, value));
  return OkStatus();
}

Status Replicas::RunOnFirst(const program::Program& program, std::span<const Variable> variables) {
  MT_ASSIGN_OR_RETURN(const auto step, session(0).LoadReplica(program, mesh_, variables));
  return step->Run();
}

Status Replicas::LoadStep(Replica& replica, const TracedReplica& traced) {
  const program::Program program = ForReplica(traced.program, replica.rank);
  MT_ASSIGN_OR_RETURN(auto step, replica.session->LoadReplica(program, mesh_, traced.variables,
                                                              BytesPerPack(o_.packing, program)));
  replica.steps.emplace(&traced, std::move(step));
  return OkStatus();
}

Status Replicas::RunStep(Replica& replica, const TracedReplica& traced,
                         std::span<const Tensor> inputs, std::vector<Tensor>* outputs) {
  LoadedStep& step = *replica.steps.at(&traced);
  for (size_t i = 0; i < traced.fed; ++i) MT_RETURN_IF_ERROR(step.Feed(i, inputs[i]));
  if (traced.program.inputs.size() > traced.fed) {
    MT_RETURN_IF_ERROR(step.Feed(traced.fed, Tensor::Scalar(static_cast<int32_t>(replica.rank))));
  }
  MT_RETURN_IF_ERROR(step.Run());
  for (size_t i = 0; i < traced.program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(Tensor value, step.Fetch(i));
    outputs->push_back(std::move(value));
  }
  return OkStatus();
}

Status Replicas::Each(const std::function<Status(int64_t i)>& body) {
  const auto job = [&](int64_t i) {
    const Status status = body(i).At(replicas_[static_cast<size_t>(i)]->name);
    // A bad step is one on every replica: all come to its end by themselves.
    if (!status.ok() && status.code() != StatusCode::kAborted) parties_->Abort(status);
    return status;
  };
  std::vector<Status> ends;
  if (count() == 1) {
    ends.push_back(job(0));
  } else {
    for (int64_t i = 0; i < count(); ++i) {
      replicas_[static_cast<size_t>(i)]->worker->Start([&job, i] { return job(i); });
    }
    for (const auto& r : replicas_) ends.push_back(r->worker->Wait());
  }
  // kUnavailable is what the others are told when one has failed.
  Status told = OkStatus();
  for (const Status& end : ends) {
    if (!end.ok() && end.code() != StatusCode::kUnavailable) return end;
    if (told.ok()) told = end;
  }
  return told;
}

Result<std::vector<PerReplica>> Replicas::Run(std::span<const TracedReplica* const> traced,
                                              const PerReplicaBatch& batch) {
  MT_CHECK(traced.size() == replicas_.size() && batch.replicas.size() == replicas_.size());
  for (size_t i = 0; i < replicas_.size(); ++i) {
    MT_CHECK(batch.replicas[i].size() == traced[i]->fed);
  }
  // Everything is compiled before anything runs, so that what cannot be compiled changes no
  // variable.
  MT_RETURN_IF_ERROR(Load(traced));
  std::vector<std::vector<Tensor>> outputs(replicas_.size());
  const Status run = Each([&](int64_t i) {
    return RunStep(*replicas_[static_cast<size_t>(i)], *traced[i],
                   batch.replicas[static_cast<size_t>(i)], &outputs[static_cast<size_t>(i)]);
  });
  if (!run.ok()) {
    torn_ = run.code() != StatusCode::kAborted;
    return run;
  }
  std::vector<PerReplica> results(outputs[0].size());
  for (std::vector<Tensor>& own : outputs) {
    MT_CHECK(own.size() == results.size());
    for (size_t k = 0; k < own.size(); ++k) results[k].values.push_back(std::move(own[k]));
  }
  return results;
}

Status Replicas::Load(std::span<const TracedReplica* const> traced) {
  parties_->Reset();
  const auto is_loaded = [&](size_t i) { return replicas_[i]->steps.contains(traced[i]); };
  bool loaded = true;
  for (size_t i = 0; i < replicas_.size(); ++i) loaded = loaded && is_loaded(i);
  if (loaded) return OkStatus();
  return Each([&](int64_t i) {
    return is_loaded(static_cast<size_t>(i))
               ? OkStatus()
               : LoadStep(*replicas_[static_cast<size_t>(i)], *traced[i]);
  });
}

void Replicas::Forget(const TracedReplica* traced) {
  for (const auto& r : replicas_) r->steps.erase(traced);
}

const LoadedStep* Replicas::step(int64_t i, const TracedReplica* traced) const {
  const auto& steps = replicas_[static_cast<size_t>(i)]->steps;
  const auto at = steps.find(traced);
  return at == steps.end() ? nullptr : at->second.get();
}

Result<Tensor> Replicas::Sum(std::span<const Tensor> values) {
  if (static_cast<int64_t>(values.size()) != count()) {
    return InvalidArgument("reduce: expected a value for each of the " + std::to_string(count()) +
                           " replicas of this process, got: " + std::to_string(values.size()));
  }
  // Checked here, and all there is to do for a single process.
  MT_ASSIGN_OR_RETURN(Tensor sum, AddAll(values));
  if (!o_.communicator) return sum;
  MT_ASSIGN_OR_RETURN(const auto behind, Behind(kSumSignature));
  std::vector<Tensor> sent, received;
  std::vector<collective::Participant> local;
  for (const Tensor& value : values) {
    sent.push_back(Widened(value));
    received.emplace_back(sum.type());
  }
  for (int64_t i = 0; i < count(); ++i) {
    local.push_back({.rank = o_.first + i,
                     .send = sent[static_cast<size_t>(i)].bytes().data(),
                     .receive = received[static_cast<size_t>(i)].mutable_bytes().data()});
  }
  const collective::GroupCall call{
      .axes = {0}, .dtype = sum.type().dtype, .what = "reduce of " + sum.type().ToString()};
  MT_RETURN_IF_ERROR(
      behind->AllReduce(call, mesh::Reduction::kSum, sum.type().num_elements(), local));
  return received[0];
}

program::Program ForReplica(program::Program program, int64_t rank) {
  if (rank == 0) return program;
  for (program::Op& op : program.ops) {
    if (op.kind != "dropout_mask") continue;
    // Any mixing does that gives each rank a key of its own; this one is SplitMix64's increment.
    const auto mixed = static_cast<uint64_t>(op.attrs.Int("seed")) +
                       static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15ULL;
    op.attrs.Set("seed", static_cast<int64_t>(mixed));
  }
  return program;
}

std::optional<int64_t> BytesPerPack(const train::Packing& packing,
                                    const program::Program& program) {
  int64_t bytes = 0;
  for (const program::Op& op : program.ops) {
    if (op.kind == "all_reduce") bytes += program.type(op.results[0]).num_bytes();
  }
  return train::BytesPerPack(packing, bytes);
}

}  // namespace meshtrain::strategy
