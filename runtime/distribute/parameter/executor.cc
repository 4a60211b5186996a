#include "runtime/distribute/parameter/executor.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/distribute/parameter/dataset.h"

namespace meshtrain::parameter {

using execute::LoadedStep;
using mesh::Tensor;
using mesh::TensorType;
using program::Variable;

namespace {

constexpr Duration kIdle = std::chrono::seconds(1);
constexpr Duration kRetryAfter = std::chrono::milliseconds(100);
constexpr Duration kDataTimeout = std::chrono::minutes(5);
// Variables of one server that are no larger come back with the answer to a push, which saves the
// next step its pull.
constexpr int64_t kWantBytes = int64_t{64} << 10;

int64_t RowBytes(const TensorType& type) {
  return type.dims.empty() || type.dims[0] == 0 ? type.num_bytes()
                                                : type.num_bytes() / type.dims[0];
}

}  // namespace

class Executor::Impl {
 public:
  explicit Impl(ExecutorOptions options) : options_(std::move(options)), boot_(DrawBoot()) {
    thread_ = std::jthread([this](std::stop_token stop) { Loop(stop); });
  }
  void Close() {
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      closed_ = true;
      abort_.request_stop();
    }
    thread_.request_stop();
    thread_.join();
    const Status why = Cancelled("the worker is shutting down");
    EndRuns(why);
    peers_.clear();
    std::deque<Task> left;
    {
      MutexLock lock(mutex_);
      left.swap(queue_);
    }
    for (Task& task : left) task.run(why);
  }

  void SetUp(WorkerSetUpRequest request, Done done) {
    {
      // The step that is running ends at its next wait; what is queued behind it finds its
      // incarnation over.
      MutexLock lock(mutex_);
      const bool newer = request.session > session_id_ ||
                         (request.session == session_id_ && request.incarnation > incarnation_);
      if (newer) abort_.request_stop();
    }
    Add([this, request = std::move(request), done](const Status& alive) mutable {
      done(alive.ok() ? DoSetUp(std::move(request)) : alive);
    });
  }
  void Load(LoadRequest request, Done done) {
    Add([this, request = std::move(request), done](const Status& alive) mutable {
      done(alive.ok() ? DoLoad(std::move(request)) : alive);
    });
  }
  void Run(RunRequest request, std::vector<Tensor> tensors, RunDone done) {
    auto run = std::make_shared<StepRun>();
    run->request = std::move(request);
    run->inputs = std::move(tensors);
    run->done = std::move(done);
    Add([this, run](const Status& alive) {
      if (!alive.ok()) return Finish(*run, alive);
      Begin(run);
    });
  }
  WorkerPingReply Ping() {
    MutexLock lock(mutex_);
    return {session_id_, incarnation_, boot_};
  }

 private:
  // Called with OK on the thread, or with why it will not be.
  struct Task {
    std::function<void(const Status& alive)> run;
  };
  struct Function {
    StepFunction spec;
    std::vector<TensorType> inputs;
    std::unique_ptr<LoadedStep> step;
    std::set<int32_t> servers;                                 // that it reads
    std::map<int32_t, std::vector<const PulledPart*>> wanted;  // by server, where they are small
  };
  using Loaded = std::variant<std::unique_ptr<Function>, std::unique_ptr<data::Pipeline>, Tensor>;
  // A variable as last pulled.
  struct Held {
    Variable variable;
    Tensor host;
    std::map<std::string, int64_t> versions;  // by shard
    bool written = false;                     // the session has what `host` has
  };
  // Variables that came with the answer to a push, until the thread takes them over.
  struct Arrived {
    int64_t version = -1;
    std::vector<PulledPart> parts;
    std::vector<std::string> variables;  // that they are parts of
    std::vector<Tensor> values;
  };
  // One step from its request to its answer.
  struct StepRun {
    RunRequest request;
    RunDone done;
    Duration until{};  // monotonic: how long servers are waited for
    const Function* function = nullptr;
    std::vector<Tensor> inputs;
    RunReply reply;
    std::vector<Tensor> outputs;
    int64_t seq = -1;  // -1: pushes nothing

    Mutex mutex;
    bool finished MT_GUARDED_BY(mutex) = false;
    std::vector<Tensor> pushed MT_GUARDED_BY(mutex);  // by output of the program
    std::set<size_t> open MT_GUARDED_BY(mutex);  // of function->spec.pushes, those not acknowledged
    std::set<size_t> sent MT_GUARDED_BY(mutex);  // of those, the ones under way
    bool stale MT_GUARDED_BY(mutex) = false;     // computed from too old a version: again
    bool pull_anew = false;                      // what is held is too old, whatever its version
    std::vector<int64_t> based_on;               // by server
  };
  using RunPtr = std::shared_ptr<StepRun>;

  void Loop(std::stop_token stop);
  void Add(std::function<void(const Status&)> run) {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        queue_.push_back({std::move(run)});
        changed_.NotifyOne();
        return;
      }
    }
    run(Cancelled("the worker is shutting down"));
  }
  void AddLater(Duration after, std::function<void()> run) {
    MutexLock lock(mutex_);
    later_.emplace(SystemClock().Monotonic() + after, std::move(run));
    changed_.NotifyOne();
  }

  Status DoSetUp(WorkerSetUpRequest request);
  Status DoLoad(LoadRequest request);
  Status LoadEntries(std::vector<Entry> entries, const std::vector<CursorAt>& cursors);
  Result<std::unique_ptr<Function>> LoadFunction(StepFunction spec);
  Result<Variable> Hold(const std::string& name, const TensorType& type);
  void EndRuns(const Status& why);

  void Begin(const RunPtr& run);
  Status Gather(StepRun& run);
  Result<std::vector<Tensor>> NextBatch(data::Pipeline& pipeline);
  void Compute(const RunPtr& run);
  Status Pull(StepRun& run);
  Status PullFrom(StepRun& run, const std::vector<int32_t>& servers);
  void TakeArrived();
  std::optional<int64_t> HeldVersion(const StepRun& run, int32_t server) const;
  Status WriteHeld(const StepRun& run);
  Status Step(StepRun& run);
  void Send(const RunPtr& run, size_t push);
  void Sent(const RunPtr& run, size_t push, const Result<std::string>& answer,
            std::vector<Tensor> values);
  void Keep(const StepRun& run, int32_t server, int64_t version, std::vector<Tensor> values);
  // Answers with `status`, once.
  void Finish(StepRun& run, const Status& status, RunReply::Cause cause = RunReply::Cause::kStep,
              int32_t server = 0);

  const ExecutorOptions options_;
  const uint64_t boot_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> queue_ MT_GUARDED_BY(mutex_);
  std::multimap<Duration, std::function<void()>> later_ MT_GUARDED_BY(mutex_);
  bool closed_ MT_GUARDED_BY(mutex_) = false;
  int64_t session_id_ MT_GUARDED_BY(mutex_) = 0;
  int64_t incarnation_ MT_GUARDED_BY(mutex_) = 0;
  std::stop_source abort_ MT_GUARDED_BY(mutex_);
  std::set<int64_t> seqs_ MT_GUARDED_BY(mutex_);              // of pushes under way
  std::set<RunPtr> runs_ MT_GUARDED_BY(mutex_);               // begun and not answered
  std::map<int32_t, Arrived> arrived_ MT_GUARDED_BY(mutex_);  // by server, the newest

  // The thread's.
  std::stop_token stop_;  // of this incarnation
  int32_t worker_ = 0, workers_ = 1;
  int64_t next_seq_ = 0;
  std::unique_ptr<execute::Session> session_;
  std::map<std::string, Held> held_;
  std::vector<Loaded> loaded_;  // by entry
  std::vector<std::unique_ptr<Peer>> peers_;

  std::jthread thread_;
};

void Executor::Impl::Loop(std::stop_token stop) {
  while (!stop.stop_requested()) {
    std::function<void(const Status&)> next;
    {
      MutexLock lock(mutex_);
      const Duration now = SystemClock().Monotonic();
      if (!later_.empty() && later_.begin()->first <= now) {
        next = [run = std::move(later_.begin()->second)](const Status&) { run(); };
        later_.erase(later_.begin());
      } else if (!queue_.empty()) {
        next = std::move(queue_.front().run);
        queue_.pop_front();
      } else {
        const Duration wait = later_.empty() ? kIdle : std::min(kIdle, later_.begin()->first - now);
        const size_t timers = later_.size();
        changed_.WaitFor(mutex_, stop, wait,
                         [&] { return !queue_.empty() || later_.size() > timers; });
        continue;
      }
    }
    next(OkStatus());
  }
}

// --- what the coordinator gives

Status Executor::Impl::DoSetUp(WorkerSetUpRequest request) {
  {
    MutexLock lock(mutex_);
    if (request.session < session_id_ ||
        (request.session == session_id_ && request.incarnation <= incarnation_)) {
      return FailedPrecondition("expected an incarnation after " + std::to_string(incarnation_) +
                                " of session " + std::to_string(session_id_) +
                                ", got: " + std::to_string(request.incarnation) + " of " +
                                std::to_string(request.session));
    }
    session_id_ = request.session;
    incarnation_ = request.incarnation;
    abort_ = std::stop_source();
    stop_ = abort_.get_token();
  }
  EndRuns(FailedPrecondition("incarnation " + std::to_string(request.incarnation) + " has begun"));
  peers_.clear();  // cancels what is under way
  {
    MutexLock lock(mutex_);
    later_.clear();
    seqs_.clear();
    arrived_.clear();
  }
  next_seq_ = 0;
  worker_ = request.worker;
  workers_ = request.workers;
  loaded_.clear();
  held_.clear();
  session_.reset();
  MT_ASSIGN_OR_RETURN(session_, execute::Session::Create(options_.session));
  for (const std::string& address : request.servers) {
    MT_ASSIGN_OR_RETURN(auto peer, Peer::Create(address, options_.identity));
    peers_.push_back(std::move(peer));
  }
  return LoadEntries(std::move(request.entries), request.cursors);
}

Status Executor::Impl::DoLoad(LoadRequest request) {
  {
    MutexLock lock(mutex_);
    if (request.session != session_id_ || request.incarnation != incarnation_) {
      return FailedPrecondition("expected incarnation " + std::to_string(incarnation_) +
                                ", got: " + std::to_string(request.incarnation));
    }
  }
  const auto have = static_cast<int64_t>(loaded_.size());
  if (request.first > have) {
    return FailedPrecondition("expected entries from " + std::to_string(have) + ", got: from " +
                              std::to_string(request.first));
  }
  const int64_t known =
      std::min<int64_t>(have - request.first, static_cast<int64_t>(request.entries.size()));
  request.entries.erase(request.entries.begin(), request.entries.begin() + known);
  return LoadEntries(std::move(request.entries), request.cursors);
}

Status Executor::Impl::LoadEntries(std::vector<Entry> entries,
                                   const std::vector<CursorAt>& cursors) {
  const size_t before = loaded_.size();
  for (Entry& entry : entries) {
    if (auto* function = std::get_if<StepFunction>(&entry)) {
      const std::string where = "step " + function->name;
      auto loaded = LoadFunction(std::move(*function));
      if (!loaded.ok()) return loaded.status().At(where);
      loaded_.emplace_back(std::move(*loaded));
    } else if (auto* dataset = std::get_if<Dataset>(&entry)) {
      auto pipeline = MakePipeline(*dataset, worker_, workers_);
      if (!pipeline.ok()) return pipeline.status().At("dataset " + dataset->name);
      loaded_.emplace_back(std::move(*pipeline));
    } else {
      loaded_.emplace_back(std::get<WorkerValue>(entry).value);
    }
  }
  for (const CursorAt& at : cursors) {
    if (at.entry < static_cast<int64_t>(before) ||
        at.entry >= static_cast<int64_t>(loaded_.size())) {
      continue;
    }
    if (auto* pipeline = std::get_if<std::unique_ptr<data::Pipeline>>(&loaded_[at.entry])) {
      MT_ASSIGN_OR_RETURN(const data::Cursor cursor, data::Cursor::Parse(at.cursor));
      MT_RETURN_IF_ERROR((*pipeline)->Restore(cursor));
    }
  }
  return OkStatus();
}

Result<Variable> Executor::Impl::Hold(const std::string& name, const TensorType& type) {
  const auto it = held_.find(name);
  if (it != held_.end()) {
    if (it->second.variable.type() != type) {
      return InvalidArgument("variable `" + name + "`: expected " +
                             it->second.variable.type().ToString() + ", got: " + type.ToString());
    }
    return it->second.variable;
  }
  const Variable variable(name, type);
  MT_RETURN_IF_ERROR(
      session_->Declare(variable, mesh::Layout::Replicated(options_.mesh, type.rank())));
  held_.emplace(name, Held{variable, Tensor(type), {}, false});
  return variable;
}

Result<std::unique_ptr<Executor::Impl::Function>> Executor::Impl::LoadFunction(StepFunction spec) {
  auto function = std::make_unique<Function>();
  const Program& program = spec.program;
  MT_RETURN_IF_ERROR(program::Validate(program));
  if (spec.pulls.size() != program.states.size() || spec.outputs < 0 ||
      spec.outputs > static_cast<int32_t>(program.outputs.size())) {
    return InvalidArgument("expected where each variable lies, got: " +
                           std::to_string(spec.pulls.size()));
  }
  std::vector<Variable> variables;
  std::map<int32_t, int64_t> bytes_of;  // by server
  for (size_t i = 0; i < program.states.size(); ++i) {
    const TensorType& type = program.type(program.states[i].entry);
    MT_ASSIGN_OR_RETURN(Variable variable, Hold(program.states[i].name, type));
    variables.push_back(std::move(variable));
    int64_t bytes = 0;
    for (const PulledPart& part : spec.pulls[i]) {
      if (part.server < 0 || part.server >= static_cast<int32_t>(peers_.size()) || part.row < 0 ||
          part.row * RowBytes(type) + part.type.num_bytes() > type.num_bytes()) {
        return InvalidArgument("variable `" + program.states[i].name +
                               "`: expected parts of it on known servers, got: " + part.shard);
      }
      function->servers.insert(part.server);
      bytes += part.type.num_bytes();
      bytes_of[part.server] += part.type.num_bytes();
    }
    if (bytes != type.num_bytes()) {
      return InvalidArgument("variable `" + program.states[i].name +
                             "`: expected parts that make it up, got: others");
    }
  }
  for (const ServerPush& push : spec.pushes) {
    bool fits = push.server >= 0 && push.server < static_cast<int32_t>(peers_.size());
    for (const PushedPart& part : push.parts) {
      fits = fits && part.output >= 0 && part.output < static_cast<int32_t>(program.outputs.size());
      if (!fits) break;
      const TensorType& type = program.type(program.outputs[part.output].value);
      fits = part.row >= 0 && part.row * RowBytes(type) + part.type.num_bytes() <= type.num_bytes();
    }
    if (!fits) {
      return InvalidArgument("expected pushes of its outputs to known servers, got: others");
    }
  }
  sharding::Given given;
  const auto batch = options_.mesh.FindAxis("batch");
  for (const program::Port& input : program.inputs) {
    const TensorType& type = program.type(input.value);
    function->inputs.push_back(type);
    const bool split = batch && type.rank() > 0 && type.dims[0] >= options_.mesh.axis(*batch).size;
    given.inputs.insert_or_assign(
        input.name, split ? mesh::Layout::BatchSharded(options_.mesh, "batch", type.rank()).value()
                          : mesh::Layout::Replicated(options_.mesh, type.rank()));
  }
  MT_ASSIGN_OR_RETURN(function->step,
                      session_->Load(program, options_.mesh, variables, std::move(given)));
  function->spec = std::move(spec);
  for (const std::vector<PulledPart>& parts : function->spec.pulls) {
    for (const PulledPart& part : parts) {
      if (bytes_of[part.server] <= kWantBytes) function->wanted[part.server].push_back(&part);
    }
  }
  return function;
}

void Executor::Impl::EndRuns(const Status& why) {
  std::set<RunPtr> runs;
  {
    MutexLock lock(mutex_);
    runs.swap(runs_);
  }
  for (const RunPtr& run : runs) Finish(*run, why);
}

// --- one step

void Executor::Impl::Begin(const RunPtr& run) {
  const RunRequest& request = run->request;
  int64_t incarnation = 0;
  bool ours = false;
  {
    MutexLock lock(mutex_);
    incarnation = incarnation_;
    ours = request.session == session_id_ && request.incarnation == incarnation_;
    if (ours) runs_.insert(run);
  }
  if (!ours) {
    return Finish(*run, FailedPrecondition("expected incarnation " + std::to_string(incarnation) +
                                           ", got: " + std::to_string(request.incarnation)));
  }
  run->until = SystemClock().Monotonic() + std::chrono::milliseconds(request.server_wait_ms);
  run->based_on.assign(peers_.size(), -1);
  run->reply.versions.assign(peers_.size(), -1);
  if (const Status gathered = Gather(*run); !gathered.ok()) return Finish(*run, gathered);
  if (!run->function->spec.pushes.empty()) {
    run->seq = next_seq_++;
    MutexLock lock(mutex_);
    seqs_.insert(run->seq);
  }
  {
    MutexLock lock(run->mutex);
    for (size_t i = 0; i < run->function->spec.pushes.size(); ++i) run->open.insert(i);
  }
  Compute(run);
}

// Arguments to input tensors, and the function that takes them.
Status Executor::Impl::Gather(StepRun& run) {
  const RunRequest& request = run.request;
  std::vector<Tensor> sent = std::move(run.inputs);
  run.inputs.clear();
  size_t next = 0;
  for (const RunArgument& argument : request.arguments) {
    if (argument.kind == RunArgument::Kind::kTensor) {
      if (next >= sent.size()) {
        return InvalidArgument("expected a tensor for each argument, got: fewer");
      }
      run.inputs.push_back(std::move(sent[next++]));
      continue;
    }
    if (argument.entry < 0 || argument.entry >= static_cast<int64_t>(loaded_.size())) {
      return InvalidArgument("expected an entry of this worker as argument, got: " +
                             std::to_string(argument.entry));
    }
    Loaded& entry = loaded_[argument.entry];
    if (auto* value = std::get_if<Tensor>(&entry)) {
      run.inputs.push_back(*value);
    } else if (auto* pipeline = std::get_if<std::unique_ptr<data::Pipeline>>(&entry)) {
      MT_ASSIGN_OR_RETURN(std::vector<Tensor> batch, NextBatch(**pipeline));
      for (Tensor& component : batch) run.inputs.push_back(std::move(component));
      run.reply.cursors.push_back({argument.entry, (*pipeline)->cursor().ToString()});
    } else {
      return InvalidArgument("expected a dataset or a value as argument, got: a function");
    }
  }
  std::string wanted;
  for (const int64_t id : request.functions) {
    const bool is_function = id >= 0 && id < static_cast<int64_t>(loaded_.size()) &&
                             std::holds_alternative<std::unique_ptr<Function>>(loaded_[id]);
    if (!is_function) {
      return InvalidArgument("expected a function of this worker, got: " + std::to_string(id));
    }
    const Function& function = *std::get<std::unique_ptr<Function>>(loaded_[id]);
    bool fits = function.inputs.size() == run.inputs.size();
    for (size_t i = 0; fits && i < run.inputs.size(); ++i) {
      fits = function.inputs[i] == run.inputs[i].type();
    }
    if (fits) {
      run.function = &function;
      return OkStatus();
    }
    for (const TensorType& type : function.inputs) {
      wanted += (wanted.empty() ? "" : ", ") + type.ToString();
    }
  }
  std::string got;
  for (const Tensor& input : run.inputs) got += (got.empty() ? "" : ", ") + input.type().ToString();
  return InvalidArgument("expected arguments of types " + wanted + ", got: " + got);
}

// At the end of a pass the next one begins.
Result<std::vector<Tensor>> Executor::Impl::NextBatch(data::Pipeline& pipeline) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    MT_ASSIGN_OR_RETURN(auto batch, pipeline.Next(stop_, kDataTimeout));
    if (batch) return std::move(batch->components);
  }
  return InvalidArgument("dataset: expected at least one batch in a pass, got: none");
}

void Executor::Impl::Compute(const RunPtr& run) {
  Status status = Pull(*run);
  if (stop_.stop_requested()) return Finish(*run, Cancelled("the step was stopped"));
  if (!status.ok()) {
    const bool away = IsAway(status.code()) || status.code() == StatusCode::kFailedPrecondition;
    return Finish(*run, status, away ? RunReply::Cause::kServerAway : RunReply::Cause::kStep,
                  run->reply.server);
  }
  status = Step(*run);
  if (!status.ok()) return Finish(*run, status);
  std::vector<size_t> sends;
  {
    MutexLock lock(run->mutex);
    run->stale = false;
    sends.assign(run->open.begin(), run->open.end());
    run->sent.insert(sends.begin(), sends.end());
  }
  if (sends.empty()) return Finish(*run, OkStatus());
  for (const size_t push : sends) Send(run, push);
}

Status Executor::Impl::Pull(StepRun& run) {
  TakeArrived();
  std::vector<int32_t> servers;
  for (const int32_t server : run.function->servers) {
    // What the coordinator knew of when it sent the step must be in the values; a worker's own last
    // push brought them.
    const std::optional<int64_t> held = run.pull_anew ? std::nullopt : HeldVersion(run, server);
    const auto& least = run.request.min_versions;
    if (held && static_cast<size_t>(server) < least.size() && *held >= least[server]) {
      run.based_on[server] = run.reply.versions[server] = *held;
    } else {
      servers.push_back(server);
    }
  }
  for (;;) {
    const Status status = PullFrom(run, servers);
    if (status.ok()) return WriteHeld(run);
    if (!IsAway(status.code())) return status;
    if (stop_.stop_requested()) return Cancelled("the step was stopped");
    if (SystemClock().Monotonic() + kRetryAfter >= run.until) return status;
    SystemClock().SleepFor(kRetryAfter, stop_);
    // Those that answered say "unchanged" now, or something newer.
  }
}

// To the host's copies, where they are newer.
void Executor::Impl::TakeArrived() {
  std::map<int32_t, Arrived> arrived;
  {
    MutexLock lock(mutex_);
    arrived.swap(arrived_);
  }
  for (auto& [server, a] : arrived) {
    for (size_t i = 0; i < a.parts.size(); ++i) {
      const PulledPart& part = a.parts[i];
      Held& held = held_.at(a.variables[i]);
      const auto version = held.versions.find(part.shard);
      if (version != held.versions.end() && version->second >= a.version) continue;
      const auto bytes = a.values[i].bytes();
      std::copy(bytes.begin(), bytes.end(),
                held.host.mutable_bytes().begin() + part.row * RowBytes(held.variable.type()));
      held.versions[part.shard] = a.version;
      held.written = false;
    }
  }
}

// The version of all that the step reads of a server, if it is one.
std::optional<int64_t> Executor::Impl::HeldVersion(const StepRun& run, int32_t server) const {
  const StepFunction& spec = run.function->spec;
  std::optional<int64_t> common;
  for (size_t i = 0; i < spec.pulls.size(); ++i) {
    const Held& held = held_.at(spec.program.states[i].name);
    for (const PulledPart& part : spec.pulls[i]) {
      if (part.server != server) continue;
      const auto version = held.versions.find(part.shard);
      if (version == held.versions.end() || (common && *common != version->second)) {
        return std::nullopt;
      }
      common = version->second;
    }
  }
  return common;
}

// What the step reads, from the host's copies to the session.
Status Executor::Impl::WriteHeld(const StepRun& run) {
  for (const program::State& state : run.function->spec.program.states) {
    Held& held = held_.at(state.name);
    if (held.written) continue;
    MT_RETURN_IF_ERROR(session_->Write(held.variable, held.host));
    held.written = true;
  }
  return OkStatus();
}

// Asks all of `servers` at once; returns the first error. Variables that came are in the host's
// copies.
Status Executor::Impl::PullFrom(StepRun& run, const std::vector<int32_t>& servers) {
  const StepFunction& spec = run.function->spec;
  struct Asked {
    PullRequest request;
    std::vector<std::pair<Held*, const PulledPart*>> parts;
    std::optional<Result<std::string>> answer;
    PullReply reply;
    std::function<void()> cancel;
  };
  std::vector<Asked> asked(servers.size());
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    a.request.session = run.request.session;
    if (static_cast<size_t>(servers[s]) < run.request.min_versions.size()) {
      a.request.min_version = run.request.min_versions[servers[s]];
    }
    std::set<int64_t> have;
    for (size_t i = 0; i < spec.pulls.size(); ++i) {
      Held& held = held_.at(spec.program.states[i].name);
      for (const PulledPart& part : spec.pulls[i]) {
        if (part.server != servers[s]) continue;
        a.request.names.push_back(part.shard);
        a.parts.emplace_back(&held, &part);
        const auto version = held.versions.find(part.shard);
        have.insert(version == held.versions.end() ? -1 : version->second);
      }
    }
    if (have.size() == 1) a.request.have_version = *have.begin();
  }
  Mutex mutex;
  CondVar changed;
  size_t waiting = asked.size();
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    const Land land = [&a,
                       &mutex](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
      MT_ASSIGN_OR_RETURN(a.reply, Decode<PullReply>(head));
      std::vector<std::span<std::byte>> to;
      if (a.reply.unchanged) return to;
      if (a.reply.types.size() != a.parts.size()) {
        return InvalidArgument("pull: expected each shard once, got: others");
      }
      MutexLock lock(mutex);  // parts of one variable may come from several servers
      for (size_t i = 0; i < a.parts.size(); ++i) {
        const auto& [held, part] = a.parts[i];
        if (a.reply.types[i] != part->type) {
          return InvalidArgument("pull: shard `" + part->shard + "`: expected " +
                                 part->type.ToString() + ", got: " + a.reply.types[i].ToString());
        }
        held->versions.erase(part->shard);  // until it is all here
        to.push_back(held->host.mutable_bytes().subspan(
            static_cast<size_t>(part->row * RowBytes(held->variable.type())),
            static_cast<size_t>(part->type.num_bytes())));
      }
      return to;
    };
    a.cancel = peers_[servers[s]]->Call(kServerPull, {Encode(a.request), {}}, options_.rpc_timeout,
                                        land, [&](Result<std::string> answer) {
                                          MutexLock lock(mutex);
                                          a.answer = std::move(answer);
                                          --waiting;
                                          changed.NotifyAll();
                                        });
  }
  // Each call ends by its own deadline; a stop only hurries it.
  const auto wait = [&](std::stop_token stop) {
    MutexLock lock(mutex);
    return changed.WaitFor(mutex, stop, std::chrono::seconds(5), [&] { return waiting == 0; });
  };
  while (!wait(stop_)) {
    if (!stop_.stop_requested()) continue;
    for (const Asked& a : asked) a.cancel();
    while (!wait({})) {
    }
  }
  Status first;
  for (size_t s = 0; s < servers.size(); ++s) {
    Asked& a = asked[s];
    if (!a.answer->ok()) {
      if (first.ok()) {
        first = a.answer->status().At("ps-" + std::to_string(servers[s]));
        run.reply.server = servers[s];
      }
      continue;
    }
    run.based_on[servers[s]] = run.reply.versions[servers[s]] = a.reply.version;
    if (a.reply.unchanged) continue;
    for (const auto& [held, part] : a.parts) {
      held->versions[part->shard] = a.reply.version;
      held->written = false;
      run.reply.pulled_bytes += part->type.num_bytes();
    }
  }
  return first;
}

Status Executor::Impl::Step(StepRun& run) {
  const Function& function = *run.function;
  const Program& program = function.spec.program;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    MT_RETURN_IF_ERROR(function.step->Feed(i, run.inputs[i]));
  }
  MT_RETURN_IF_ERROR(function.step->Run());
  run.outputs.clear();
  run.reply.outputs.clear();
  for (int32_t i = 0; i < function.spec.outputs; ++i) {
    MT_ASSIGN_OR_RETURN(Tensor value, function.step->Fetch(static_cast<size_t>(i)));
    const std::string& name = program.outputs[i].name;
    const auto& finite = function.spec.finite;
    if (std::find(finite.begin(), finite.end(), name) != finite.end() &&
        value.type().num_elements() == 1 && !std::isfinite(value.Item())) {
      return Aborted("step " + std::to_string(run.request.step) + ": output `" + name +
                     "`: expected a finite number, got: " + std::to_string(value.Item()) +
                     "; nothing was pushed");
    }
    run.reply.outputs.push_back({name, value.type()});
    run.outputs.push_back(std::move(value));
  }
  std::vector<Tensor> pushed(program.outputs.size());
  for (size_t i = static_cast<size_t>(function.spec.outputs); i < program.outputs.size(); ++i) {
    MT_ASSIGN_OR_RETURN(pushed[i], function.step->Fetch(i));
  }
  MutexLock lock(run.mutex);
  run.pushed = std::move(pushed);
  return OkStatus();
}

void Executor::Impl::Send(const RunPtr& run, size_t push) {
  const ServerPush& to = run->function->spec.pushes[push];
  PushRequest request{run->request.session,
                      {worker_, run->request.incarnation, run->seq},
                      run->seq,
                      to.update,
                      {},
                      run->based_on[to.server]};
  Frame frame;
  {
    MutexLock lock(run->mutex);
    if (run->finished) return;
    for (const PushedPart& part : to.parts) {
      const int64_t rows = part.type.dims.empty() ? 1 : part.type.dims[0];
      frame.payload.push_back(RowsOf(run->pushed[part.output], part.row, rows));
      run->reply.pushed_bytes += part.type.num_bytes();
    }
  }
  {
    MutexLock lock(mutex_);
    if (!seqs_.empty()) request.settled = *seqs_.begin();
  }
  if (const auto wanted = run->function->wanted.find(to.server);
      wanted != run->function->wanted.end()) {
    for (const PulledPart* part : wanted->second) request.want.push_back(part->shard);
  }
  frame.head = Encode(request);
  auto values = std::make_shared<std::vector<Tensor>>();
  const Land land = [values](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
    MT_ASSIGN_OR_RETURN(const PushReply reply, Decode<PushReply>(head));
    std::vector<std::span<std::byte>> to;
    for (const TensorType& type : reply.types) values->emplace_back(type);
    for (Tensor& value : *values) to.push_back(value.mutable_bytes());
    return to;
  };
  peers_[to.server]->Call(kServerPush, std::move(frame), options_.rpc_timeout, land,
                          [this, run, push, values](const Result<std::string>& answer) {
                            Sent(run, push, answer, std::move(*values));
                          });
}

// On a gRPC thread.
void Executor::Impl::Sent(const RunPtr& run, size_t push, const Result<std::string>& answer,
                          std::vector<Tensor> values) {
  const ServerPush& to = run->function->spec.pushes[push];
  Status status = answer.status().At("ps-" + std::to_string(to.server));
  bool all = false;
  bool again = false;
  {
    MutexLock lock(run->mutex);
    if (run->finished) return;
    run->sent.erase(push);
    if (answer.ok()) {
      const auto reply = Decode<PushReply>(*answer);
      if (reply.ok()) {
        run->open.erase(push);
        run->reply.versions[to.server] = reply->version;
        for (const Tensor& value : values) run->reply.pulled_bytes += value.type().num_bytes();
        if (!values.empty()) Keep(*run, to.server, reply->values_version, std::move(values));
      } else {
        status = reply.status();
      }
    } else if (status.code() == StatusCode::kAborted) {
      run->stale = true;
      status = OkStatus();
    }
    all = run->open.empty();
    again = run->stale && run->sent.empty();
    if (again) run->pull_anew = true;
  }
  if (all) return Finish(*run, OkStatus());
  const Duration now = SystemClock().Monotonic();
  if (!status.ok()) {
    const bool away = IsAway(status.code());
    if (!away || now + kRetryAfter >= run->until) {
      const bool lost = away || status.code() == StatusCode::kFailedPrecondition;
      return Finish(*run, status, lost ? RunReply::Cause::kServerAway : RunReply::Cause::kStep,
                    to.server);
    }
    {
      MutexLock lock(run->mutex);
      run->sent.insert(push);
    }
    return AddLater(kRetryAfter, [this, run, push] { Send(run, push); });
  }
  if (!again) return;
  if (now >= run->until) {
    return Finish(*run,
                  Unavailable("ps-" + std::to_string(to.server) +
                              ": others change its variables faster than " +
                              "the staleness bound lets this worker compute"),
                  RunReply::Cause::kServerAway, to.server);
  }
  Add([this, run](const Status& alive) {
    if (!alive.ok()) return Finish(*run, alive);
    {
      MutexLock lock(run->mutex);
      if (run->finished) return;
    }
    Compute(run);
  });
}

// Variables that came with an answer, for the next step; under the run's lock.
void Executor::Impl::Keep(const StepRun& run, int32_t server, int64_t version,
                          std::vector<Tensor> values) {
  const StepFunction& spec = run.function->spec;
  Arrived next{.version = version, .values = std::move(values)};
  for (size_t i = 0; i < spec.pulls.size(); ++i) {
    for (const PulledPart& part : spec.pulls[i]) {
      if (part.server != server) continue;
      next.parts.push_back(part);
      next.variables.push_back(spec.program.states[i].name);
    }
  }
  bool fits = next.parts.size() == next.values.size();
  for (size_t i = 0; fits && i < next.parts.size(); ++i) {
    fits = next.parts[i].type == next.values[i].type();
  }
  if (!fits) return;
  MutexLock lock(mutex_);
  if (run.request.incarnation != incarnation_) return;
  Arrived& kept = arrived_[server];
  if (kept.version < version) kept = std::move(next);
}

void Executor::Impl::Finish(StepRun& run, const Status& status, RunReply::Cause cause,
                            int32_t server) {
  {
    MutexLock lock(run.mutex);
    if (run.finished) return;
    run.finished = true;
  }
  {
    MutexLock lock(mutex_);
    if (run.seq >= 0 && run.request.incarnation == incarnation_) seqs_.erase(run.seq);
    std::erase_if(runs_, [&](const RunPtr& r) { return r.get() == &run; });
  }
  // Not a step's failure: the coordinator has to do something about this worker.
  const bool over =
      cause == RunReply::Cause::kStep &&
      (status.code() == StatusCode::kFailedPrecondition || status.code() == StatusCode::kCancelled);
  if (over) return run.done(status, {});
  run.reply.status = status;
  run.reply.cause = cause;
  run.reply.server = server;
  if (!status.ok()) {
    run.reply.outputs.clear();
    run.outputs.clear();
  }
  run.done(std::move(run.reply), std::move(run.outputs));
}

Executor::Executor(ExecutorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Executor::~Executor() { Close(); }

void Executor::Close() { impl_->Close(); }
void Executor::SetUp(WorkerSetUpRequest request, Done done) {
  impl_->SetUp(std::move(request), std::move(done));
}
void Executor::Load(LoadRequest request, Done done) {
  impl_->Load(std::move(request), std::move(done));
}
void Executor::Run(RunRequest request, std::vector<Tensor> tensors, RunDone done) {
  impl_->Run(std::move(request), std::move(tensors), std::move(done));
}
WorkerPingReply Executor::Ping() const { return impl_->Ping(); }

}  // namespace meshtrain::parameter
