#include "runtime/parameter/chief/coordinator.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/checkpoint/restore.h"

namespace meshtrain::parameter {

using mesh::Tensor;

namespace {

constexpr Duration kFirstPings = std::chrono::milliseconds(300);
// At servers that are away, while a checkpoint is written.
constexpr Duration kLook = std::chrono::milliseconds(100);

// Where a worker's dataset stands, in a checkpoint's metadata.
std::string CursorKey(const std::string& dataset, int worker, int workers) {
  return "parameter_server.cursor." + dataset + "." + std::to_string(worker) + "/" +
         std::to_string(workers);
}

}  // namespace

Result<std::vector<std::string>> AddressesOf(const cluster::ClusterSpec& cluster,
                                             cluster::Role role) {
  const std::string name(cluster::RoleName(role));
  const auto it = cluster.hosts.find(role);
  if (it == cluster.hosts.end() || it->second.empty()) {
    return InvalidArgument("parameter servers: expected at least one " + name +
                           " in the cluster, got: none");
  }
  if (!cluster.dense(role)) {
    return InvalidArgument("parameter servers: expected every " + name +
                           " from 0 on, got: some of them");
  }
  std::vector<std::string> addresses;
  for (const auto& [index, address] : it->second) addresses.push_back(address);
  return addresses;
}

// Writes a checkpoint behind the training's back, one at a time.
class Coordinator::CheckpointWriter {
 public:
  // `missing`: not OK once a server has been away for too long.
  CheckpointWriter(ServerGroup& servers, int keep, Duration timeout,
                   std::function<Status()> missing)
      : servers_(servers), keep_(keep), timeout_(timeout), missing_(std::move(missing)) {}
  ~CheckpointWriter() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

  // The one before, and its error, told once; kAborted: a server lost its part, and the checkpoint
  // may be made anew. `stop` ends it: what is not complete by then will not
  // be.
  Status Wait(std::stop_token stop) {
    const std::stop_callback give_up(stop, [this] { thread_.request_stop(); });
    if (thread_.joinable()) thread_.join();
    MutexLock lock(mutex_);
    return std::exchange(status_, OkStatus());
  }
  // checkpoint::SaveOptions::replaces of the job's own next one that is made complete. After Wait.
  void set_replaces(std::vector<std::string> folders) { replaces_ = std::move(folders); }
  struct Checkpoint {
    std::string folder;
    int64_t step = 0;
    std::map<std::string, std::string> metadata;
    std::string program_hash;
    std::optional<int64_t> pinned;
    bool cuts_log = true;
  };
  // After Wait, when the servers have made their cuts. Errors: kUnavailable (no thread).
  Status Begin(Checkpoint made) {
    auto save = [this, made = std::move(made)](std::stop_token stop) {
      const Duration begin = SystemClock().Monotonic();
      const Status status = WriteUnlessMissing(made, stop);
      const std::chrono::duration<double> took = SystemClock().Monotonic() - begin;
      MutexLock lock(mutex_);
      status_ = status;
      if (!status.ok()) {
        ++failures_;
        return;
      }
      last_ = {made.step, checkpoint::CheckpointFolder(made.folder, made.step), took.count()};
    };
    MT_ASSIGN_OR_RETURN(thread_, StartThread("checkpoint", std::move(save)));
    return OkStatus();
  }
  std::optional<checkpoint::SaveReport> last() const {
    MutexLock lock(mutex_);
    return last_;
  }
  int64_t failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }

 private:
  // A server that is away writes nothing, and need not be waited for as long as one that writes.
  Status WriteUnlessMissing(const Checkpoint& made, std::stop_token stop) {
    std::stop_source give_up;
    const std::stop_callback stopped(stop, [&] { give_up.request_stop(); });
    Status missing;
    const auto look = [&](std::stop_token done) {
      while (!done.stop_requested()) {
        missing = missing_();
        if (!missing.ok()) {
          give_up.request_stop();
          return;
        }
        SystemClock().SleepFor(kLook, done);
      }
    };
    MT_ASSIGN_OR_RETURN(std::jthread looking, StartThread("servers of a checkpoint", look));
    const Status status = Write(made, give_up.get_token());
    looking.request_stop();
    looking.join();
    if (status.code() != StatusCode::kCancelled || missing.ok()) return status;
    return missing.At("checkpoint of step " + std::to_string(made.step));
  }
  Status Write(const Checkpoint& made, std::stop_token stop) {
    const auto parts =
        servers_.WriteParts(made.step, made.program_hash, made.metadata, timeout_, stop);
    if (!parts.ok()) {
      // A server that came back has its pushes, but not the copy that it took of them for us.
      if (parts.status().code() != StatusCode::kFailedPrecondition) return parts.status();
      return Aborted("checkpoint of step " + std::to_string(made.step) + ": " +
                     parts.status().message())
          .From(Origin::kPeers);
    }
    MT_RETURN_IF_ERROR(
        checkpoint::Commit(made.folder, *parts,
                           {.keep = keep_,
                            .pinned = made.pinned,
                            .replaces = made.cuts_log ? replaces_ : std::vector<std::string>()})
            .status()
            .From(Origin::kOutput));
    if (!made.cuts_log) return OkStatus();
    replaces_.clear();
    // A server that does not hear it keeps its log a little longer.
    if (const Status told = servers_.Committed(made.step, timeout_, stop); !told.ok()) {
      LogWarning("a parameter server was not told of a checkpoint",
                 {{"step", std::to_string(made.step)}, {"error", told.message()}});
    }
    return OkStatus();
  }

  ServerGroup& servers_;
  const int keep_;
  const Duration timeout_;
  const std::function<Status()> missing_;
  mutable Mutex mutex_;
  Status status_ MT_GUARDED_BY(mutex_);
  std::optional<checkpoint::SaveReport> last_ MT_GUARDED_BY(mutex_);
  int64_t failures_ MT_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> replaces_;  // the thread's, while there is one
  std::jthread thread_;
};

Coordinator::Coordinator(CoordinatorOptions options) : options_(std::move(options)) {}

Coordinator::~Coordinator() {
  stop_.request_stop();
  saver_.reset();
  dispatcher_.reset();
}

Result<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options,
                                                         std::stop_token stop) {
  MT_RETURN_IF_ERROR(CheckPartitioner(options.partitioner));
  MT_ASSIGN_OR_RETURN(const auto servers, AddressesOf(options.cluster, cluster::Role::kPs));
  MT_ASSIGN_OR_RETURN(const auto workers, AddressesOf(options.cluster, cluster::Role::kWorker));
  if (options.steps_in_flight < 1 || options.max_attempts < 1 || options.max_queued < 1) {
    return InvalidArgument(
        "parameter servers: steps_in_flight, max_attempts, max_queued: expected at least 1");
  }
  auto coordinator = std::unique_ptr<Coordinator>(new Coordinator(std::move(options)));
  const CoordinatorOptions& o = coordinator->options_;
  if (!o.restore.empty()) {
    MT_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(o.restore));
    coordinator->restored_cursors_ = checkpoint->index().metadata;
  }
  coordinator->planner_ =
      std::make_unique<Planner>(o.partitioner, static_cast<int>(servers.size()), o.seed);
  MT_ASSIGN_OR_RETURN(coordinator->servers_,
                      ServerGroup::Create(servers, o.identity, o.rpc_timeout));
  {
    // Those that are there already hear that we are too, while the others are waited for.
    const auto ping = [&](std::stop_token done) {
      while (!done.stop_requested()) {
        for (int s = 0; s < coordinator->servers_->size(); ++s) {
          coordinator->servers_->Ping(s, {}, {}, o.lost_after, [](const Status&) {});
        }
        SystemClock().SleepFor(kFirstPings, done);
      }
    };
    MT_ASSIGN_OR_RETURN(const std::jthread pinging, StartThread("pings of servers", ping));
    const Duration until = SystemClock().Monotonic() + o.start_timeout;
    if (o.term == 0) {
      // The predecessor's clock may have been ahead of ours, by more than it lived.
      const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                              SystemClock().Now().time_since_epoch())
                              .count();
      MT_ASSIGN_OR_RETURN(const int64_t before,
                          coordinator->servers_->NewestSession(o.start_timeout, stop));
      coordinator->options_.term = std::max(now, before + 1);
    }
    MT_RETURN_IF_ERROR(coordinator->servers_->SetUp(
        {.term = o.term, .restore = o.restore, .staleness_bound = o.staleness_bound},
        until - SystemClock().Monotonic(), stop));
  }
  MT_ASSIGN_OR_RETURN(coordinator->dispatcher_,
                      Dispatcher::Create({.workers = workers,
                                          .identity = o.identity,
                                          .term = o.term,
                                          .in_flight = o.steps_in_flight,
                                          .max_attempts = o.max_attempts,
                                          .max_queued = o.max_queued,
                                          .step_timeout = o.step_timeout,
                                          .start_timeout = o.start_timeout,
                                          .return_timeout = o.return_timeout,
                                          .ping = o.ping,
                                          .lost_after = o.lost_after},
                                         coordinator->servers_.get()));
  coordinator->saver_ = std::make_unique<CheckpointWriter>(
      *coordinator->servers_, o.keep, o.save_timeout,
      [&dispatcher = *coordinator->dispatcher_, away = o.return_timeout] {
        return dispatcher.ServersWithin(away);
      });
  return coordinator;
}

// --- definitions

Status Coordinator::Define(const std::vector<Definition>& definitions) {
  return servers_->Define(definitions, options_.return_timeout, stop_.get_token());
}

Status Coordinator::CreateVariables(std::span<const Parameter> variables) {
  Planner next = *planner_;
  MT_ASSIGN_OR_RETURN(const std::vector<Definition> definitions, next.AddVariables(variables));
  MT_RETURN_IF_ERROR(Define(definitions));
  *planner_ = std::move(next);
  return OkStatus();
}

Status Coordinator::DefineUpdate(const std::string& name, std::span<const Pushed> pushed,
                                 const Updater& updater) {
  Planner next = *planner_;
  MT_ASSIGN_OR_RETURN(const std::vector<Definition> definitions,
                      next.AddUpdate(name, pushed, updater));
  MT_RETURN_IF_ERROR(Define(definitions));
  *planner_ = std::move(next);
  updates_.insert(name);
  return OkStatus();
}

Result<Function> Coordinator::DefineFunction(const Program& step, const std::string& update,
                                             const Updater& updater,
                                             std::vector<std::string> finite) {
  MT_ASSIGN_OR_RETURN(const WorkerStep split, SplitStep(step));
  std::string name;
  if (!split.pushed.empty()) {
    name = update.empty() ? step.name : update;
    if (!updates_.contains(name)) MT_RETURN_IF_ERROR(DefineUpdate(name, split.pushed, updater));
  }
  MT_ASSIGN_OR_RETURN(StepFunction function,
                      planner_->MakeFunction(split, name, std::move(finite)));
  return Function{{dispatcher_->AddEntry(std::move(function))}};
}

Result<Training> Coordinator::DefineTraining(const train::Recipe& recipe,
                                             std::span<const BatchTypes> types) {
  if (types.empty()) {
    return InvalidArgument("training: expected the types of at least one batch, got: none");
  }
  Training training{.update = "training." + std::to_string(updates_.size())};
  MT_RETURN_IF_ERROR(AddBatches(training, recipe, types));
  return training;
}

Status Coordinator::AddBatches(Training& training, const train::Recipe& recipe,
                               std::span<const BatchTypes> types) {
  for (const BatchTypes& batch : types) {
    train::Recipe tapped = recipe;
    tapped.optimizer = GradientTap(*recipe.optimizer);
    MT_ASSIGN_OR_RETURN(const train::Programs programs, train::BuildPrograms(tapped, batch));
    if (training.parameters.empty()) {
      // The slots here: `step`, where it is used.
      std::vector<Parameter> created;
      for (const Parameter& variable : programs.States()) {
        if (!planner_->Holds(variable)) created.push_back(variable);
      }
      if (!created.empty()) MT_RETURN_IF_ERROR(CreateVariables(created));
      for (const Parameter& p : programs.parameters) training.parameters.push_back(p.name());
    }
    MT_ASSIGN_OR_RETURN(
        const Function step,
        DefineFunction(
            CountingExamples(programs.train_step, batch[0].rank() > 0 ? batch[0].dims[0] : 1),
            training.update, UpdaterOf(recipe.optimizer), {std::string(train::kLossName)}));
    MT_ASSIGN_OR_RETURN(const Function evaluate, DefineFunction(programs.eval_step));
    training.step.entries.insert(training.step.entries.end(), step.entries.begin(),
                                 step.entries.end());
    training.classes = programs.classes;
    training.rows = programs.rows;
    training.summed = programs.summed;
    training.evaluate.entries.insert(training.evaluate.entries.end(), evaluate.entries.begin(),
                                     evaluate.entries.end());
  }
  return OkStatus();
}

Result<PerWorker> Coordinator::CreatePerWorkerDataset(const std::string& name,
                                                      data::PipelineSpec spec, ShardPolicy policy,
                                                      int64_t examples) {
  if (const auto* own = std::get_if<data::OwnSource>(&spec.source.from)) {
    return InvalidArgument("dataset `" + name +
                           "`: expected files or arrays, which workers can be sent, got: source `" +
                           own->name + "` of this program");
  }
  for (const auto& [entry, taken] : dataset_names_) {
    if (taken == name) {
      return AlreadyExists("dataset `" + name + "`: expected a new name, got: one that is taken");
    }
  }
  std::vector<std::string> cursors;
  for (int w = 0; w < num_workers(); ++w) {
    const auto it = restored_cursors_.find(CursorKey(name, w, num_workers()));
    cursors.push_back(it == restored_cursors_.end() ? "" : it->second);
  }
  const PerWorker made{
      dispatcher_->AddEntry(Dataset{name, std::move(spec), policy, examples}, cursors), true};
  dataset_names_[made.entry] = name;
  return made;
}

Result<PerWorker> Coordinator::CreatePerWorkerValue(const std::string& name,
                                                    const std::vector<Tensor>& values) {
  if (static_cast<int>(values.size()) != num_workers()) {
    return InvalidArgument("per-worker value `" + name + "`: expected one for each of " +
                           std::to_string(num_workers()) +
                           " workers, got: " + std::to_string(values.size()));
  }
  std::vector<Entry> entries;
  for (const Tensor& value : values) {
    if (value.type() != values[0].type()) {
      return InvalidArgument("per-worker value `" + name + "`: expected values of one type, got: " +
                             values[0].type().ToString() + " and " + value.type().ToString());
    }
    entries.push_back(WorkerValue{name, value});
  }
  return PerWorker{dispatcher_->AddEntries(std::move(entries)), false};
}

// --- steps

Result<RemoteValue> Coordinator::Schedule(const Function& function,
                                          const std::vector<Arg>& arguments, std::stop_token stop) {
  std::vector<Argument> list;
  for (const Arg& arg : arguments) list.push_back(arg.argument());
  MT_ASSIGN_OR_RETURN(auto handle, dispatcher_->Submit(function.entries, std::move(list),
                                                       options_.step_timeout, stop));
  return RemoteValue(std::move(handle));
}

Status Coordinator::Join(std::stop_token stop, Duration timeout) {
  return dispatcher_->Join(timeout, stop);
}
Result<bool> Coordinator::Done() { return dispatcher_->Done(); }

Result<Outputs> Coordinator::Fetch(const RemoteValue& value, std::stop_token stop,
                                   Duration timeout) {
  MT_ASSIGN_OR_RETURN(StepOutcome outcome, dispatcher_->Wait(*value.handle_, timeout, stop));
  return std::move(outcome.outputs);
}

// --- variables

Result<std::vector<Planner::Part>> Coordinator::PartsOf(std::string_view name) const {
  const auto it = planner_->states().find(std::string(name));
  if (it == planner_->states().end()) {
    return NotFound("expected a variable of the parameter servers, got: `" + std::string(name) +
                    "`");
  }
  return it->second;
}

Result<Tensor> Coordinator::Read(std::string_view name, std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const std::vector<Planner::Part> parts, PartsOf(name));
  return servers_->Read(parts, options_.return_timeout, stop);
}

Status Coordinator::Write(std::string_view name, const Tensor& value, std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const std::vector<Planner::Part> parts, PartsOf(name));
  return servers_->Write(parts, value, options_.return_timeout, stop);
}

// --- checkpoints

Status Coordinator::Save(int64_t step, std::map<std::string, std::string> metadata,
                         const std::string& program_hash, std::stop_token stop) {
  return SaveTo(options_.checkpoint_folder, step, std::move(metadata), program_hash, stop);
}

Status Coordinator::SaveTo(const std::string& folder, int64_t step,
                           std::map<std::string, std::string> metadata,
                           const std::string& program_hash, std::stop_token stop) {
  if (folder.empty()) return FailedPrecondition("checkpoint: expected a folder, got: none");
  if (const Status before = saver_->Wait(stop); before.code() == StatusCode::kAborted) {
    LogWarning("given up, this checkpoint takes its place",
               {{"error", before.message()}, {"step", std::to_string(step)}});
  } else if (!before.ok()) {
    return before;
  }
  const bool own = folder == options_.checkpoint_folder;
  Status cut = dispatcher_->CloseGate(options_.step_timeout, stop);
  if (cut.ok()) {
    // Steps that ended while the gate closed are in it.
    newest_ = {folder, step, metadata, program_hash, dispatcher_->stats().steps_done};
    for (const Dispatcher::Cursor& at : dispatcher_->cursors()) {
      const auto name = dataset_names_.find(at.entry);
      if (name != dataset_names_.end()) {
        metadata[CursorKey(name->second, at.worker, num_workers())] = at.cursor;
      }
    }
    cut = servers_->Cut(step, folder, dispatcher_->live_incarnations(), own,
                        options_.return_timeout, stop);
  }
  dispatcher_->OpenGate();
  MT_RETURN_IF_ERROR(cut);
  return saver_->Begin({.folder = folder,
                        .step = step,
                        .metadata = std::move(metadata),
                        .program_hash = program_hash,
                        .pinned = pinned_,
                        .cuts_log = own});
}

void Coordinator::set_replaced_checkpoints(std::vector<std::string> folders) {
  saver_->set_replaces(std::move(folders));
}

Status Coordinator::WaitForSave(std::stop_token stop) {
  for (int attempt = 1;; ++attempt) {
    const Status status = saver_->Wait(stop);
    // The same once more, as long as there is no step that it would lack.
    const bool again = status.code() == StatusCode::kAborted && attempt < options_.max_attempts &&
                       dispatcher_->stats().steps_done == newest_.steps_done;
    if (!again)
      return status.code() == StatusCode::kAborted ? status.WithCode(StatusCode::kUnavailable)
                                                   : status;
    LogWarning("given up, and made anew", {{"error", status.message()}});
    const Newest same = newest_;
    MT_RETURN_IF_ERROR(SaveTo(same.folder, same.step, same.metadata, same.program_hash, stop));
  }
}
std::optional<checkpoint::SaveReport> Coordinator::last_save() const { return saver_->last(); }
int64_t Coordinator::failed_saves() const { return saver_->failures(); }
int64_t Coordinator::last_saved() const {
  const auto last = saver_->last();
  return last ? last->step : -1;
}

void Coordinator::End(Duration timeout) {
  dispatcher_->EndWorkers(/*goes_on=*/false, timeout);
  servers_->End(/*goes_on=*/false, timeout);
}

void Coordinator::Leave(Duration timeout) {
  dispatcher_->EndWorkers(/*goes_on=*/true, timeout);
  servers_->End(/*goes_on=*/true, timeout);
}

}  // namespace meshtrain::parameter
