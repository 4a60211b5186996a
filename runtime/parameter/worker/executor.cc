// The executor's thread, and what the coordinator gives it: incarnations, functions, datasets,
// values.
#include "runtime/parameter/worker/executor.h"

#include <algorithm>

#include "runtime/data/cursor.h"
#include "runtime/parameter/worker/executor_impl.h"

namespace meshtrain::parameter {
namespace {

constexpr Duration kIdle = std::chrono::seconds(1);
// Variables of one server that are no larger come back with the answer to a push, which saves the
// next step its pull.
constexpr int64_t kWantBytes = int64_t{64} << 10;

// What this worker cannot take, of a session or a step: the manifest's, as in a job on a mesh. What
// may be otherwise in a moment has no origin but its own.
Status Refused(const Status& error) {
  return IsAway(error.code()) ? error : error.From(Origin::kManifest);
}

}  // namespace

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
        changed_.WaitFor(mutex_, stop, wait, [&]() MT_REQUIRES(mutex_) {
          return !queue_.empty() || later_.size() > timers;
        });
        continue;
      }
    }
    next(OkStatus());
  }
}
Status Executor::Impl::DoSetUp(WorkerSetUpRequest request) {
  {
    MutexLock lock(mutex_);
    if (request.term < term_ || (request.term == term_ && request.incarnation <= incarnation_)) {
      return FailedPrecondition("expected an incarnation after " + std::to_string(incarnation_) +
                                " of term " + std::to_string(term_) +
                                ", got: " + std::to_string(request.incarnation) + " of " +
                                std::to_string(request.term));
    }
    term_ = request.term;
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
    returned_.clear();
    arrived_.clear();
  }
  next_seq_ = 0;
  worker_ = request.worker;
  workers_ = request.workers;
  loaded_.clear();
  datasets_.clear();
  held_.clear();
  session_.reset();
  auto session = execute::Session::Create(options_.session);
  if (!session.ok()) return Refused(session.status());
  session_ = std::move(*session);
  for (const std::string& address : request.servers) {
    MT_ASSIGN_OR_RETURN(auto peer, Peer::Create(address, options_.identity));
    peers_.push_back(std::move(peer));
  }
  return LoadEntries(std::move(request.entries), request.cursors);
}

Status Executor::Impl::DoLoad(LoadRequest request) {
  {
    MutexLock lock(mutex_);
    if (request.term != term_ || request.incarnation != incarnation_) {
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
      if (!loaded.ok()) return Refused(loaded.status()).At(where);
      loaded_.emplace_back(std::move(*loaded));
    } else if (auto* dataset = std::get_if<Dataset>(&entry)) {
      auto pipeline = MakePipeline(*dataset, worker_, workers_);
      if (!pipeline.ok()) return pipeline.status();
      datasets_[static_cast<int64_t>(loaded_.size())] = dataset->name;
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
      const auto cursor = data::Cursor::Parse(at.cursor);
      const Status restored = cursor.ok() ? (*pipeline)->Restore(*cursor) : cursor.status();
      MT_RETURN_IF_ERROR(restored.At("dataset " + datasets_.at(at.entry)).From(Origin::kOutput));
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
  for (const RunPtr& run : runs) Abandon(*run, why);
}
Executor::Executor(ExecutorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Executor::~Executor() { Close(); }

Status Executor::Start() { return impl_->Start(); }
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
