#include "runtime/parameter/chief/dispatcher.h"

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/data/cursor.h"
#include "runtime/parameter/chief/dispatcher_impl.h"
#include "runtime/parameter/messages/chief_watch.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using Kind = ScheduleAction::Kind;

namespace {

// Of a call to a worker: it was lost, or is to be set up anew. Other errors would come again, and
// so would those that are not the worker's own (rpc/peer_error.h), whatever their code.
bool IsLost(const Status& error) {
  const StatusCode code = error.code();
  return error.origin().value_or(Origin::kPeers) == Origin::kPeers &&
         (IsAway(code) || code == StatusCode::kFailedPrecondition || code == StatusCode::kUnknown);
}

// Which of two places in one dataset is further on.
bool IsAfter(const std::string& a, const std::string& b) {
  const auto left = data::Cursor::Parse(a), right = data::Cursor::Parse(b);
  if (!left.ok() || !right.ok()) return true;
  return std::pair(left->epoch, left->batch) > std::pair(right->epoch, right->batch);
}

}  // namespace

// --- events and actions

void Dispatcher::Impl::HandleEvent(const ScheduleEvent& event, Starts* starts) {
  const size_t before = starts->size();
  for (const ScheduleAction& action : schedule_.On(event)) {
    const int worker = action.worker;
    const int64_t incarnation = action.incarnation;
    switch (action.kind) {
      case Kind::kSetUp:
        starts->push_back(
            [this, worker, incarnation, to = action.to] { StartSetUp(worker, incarnation, to); });
        break;
      case Kind::kLoad:
        starts->push_back([this, worker, incarnation, from = action.from, to = action.to] {
          StartLoad(worker, incarnation, from, to);
        });
        break;
      case Kind::kRun:
        starts->push_back([this, worker, incarnation, step = action.step] {
          StartRun(worker, incarnation, step);
        });
        break;
      case Kind::kFinish:
        ++stats_.steps_done;
        End(action.step, std::move(steps_.at(action.step).result));
        break;
      case Kind::kCancel:
        End(action.step, {.status = action.error});
        break;
    }
  }
  performing_ += static_cast<int64_t>(starts->size() - before);
  // Here, and not where workers come and go: whatever the event was, this is how it left them.
  if (schedule_.any_ready()) {
    had_worker_ = true;
    no_worker_since_ = Duration(-1);
  } else if (no_worker_since_ < Duration(0)) {
    no_worker_since_ = SystemClock().Monotonic();
  }
  if (waiting_ > 0 || (joining_ > 0 && schedule_.idle())) changed_.NotifyAll();
}

void Dispatcher::Impl::End(int64_t step, StepOutcome outcome) {
  const auto it = steps_.find(step);
  it->second.handle->outcome_ = std::make_shared<const StepOutcome>(std::move(outcome));
  steps_.erase(it);
}

void Dispatcher::Impl::StartSetUp(int worker, int64_t incarnation, int64_t to) {
  WorkerSetUpRequest request{
      .term = options_.term, .worker = worker, .workers = workers(), .incarnation = incarnation};
  for (int s = 0; s < servers_->size(); ++s) request.servers.push_back(servers_->address(s));
  {
    MutexLock lock(mutex_);
    for (int64_t i = 0; i < to; ++i) {
      const std::vector<Entry>& entry = *entries_[i];
      request.entries.push_back(entry.size() == 1 ? entry[0] : entry[worker]);
    }
    for (const auto& [entry, cursor] : cursors_[worker]) request.cursors.push_back({entry, cursor});
  }
  Frame frame{Encode(request), {}};
  for (const Tensor& t : EntriesPayload(request.entries)) frame.payload.push_back(PieceOf(t));
  peers_[worker]->Call(kWorkerSetUp, std::move(frame), options_.set_up_timeout, nullptr,
                       [this, worker, incarnation, to](const Result<std::string>& answer) {
                         if (!answer.ok()) return NotReady(worker, incarnation, answer.status());
                         Ready(worker, incarnation, to);
                       });
}

void Dispatcher::Impl::Ready(int worker, int64_t incarnation, int64_t to) {
  Starts starts;
  bool ready = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    HandleEvent(WorkerSetUp{worker, incarnation, to}, &starts);
    ready = schedule_.ready(worker) && schedule_.incarnation(worker) == incarnation;
    if (ready) lost_workers_[worker] = false;
    if (ready) away_notes_.Answered(worker);
  }
  if (ready) {
    LogInfo("worker is ready",
            {{"worker", std::to_string(worker)}, {"incarnation", std::to_string(incarnation)}});
  }
  Perform(starts);
}

void Dispatcher::Impl::StartLoad(int worker, int64_t incarnation, int64_t from, int64_t to) {
  LoadRequest request{.term = options_.term, .incarnation = incarnation, .first = from};
  {
    MutexLock lock(mutex_);
    for (int64_t i = from; i < to; ++i) {
      const std::vector<Entry>& entry = *entries_[i];
      request.entries.push_back(entry.size() == 1 ? entry[0] : entry[worker]);
    }
    for (const auto& [entry, cursor] : cursors_[worker]) request.cursors.push_back({entry, cursor});
  }
  Frame frame{Encode(request), {}};
  for (const Tensor& t : EntriesPayload(request.entries)) frame.payload.push_back(PieceOf(t));
  peers_[worker]->Call(kWorkerLoad, std::move(frame), options_.set_up_timeout, nullptr,
                       [this, worker, incarnation, to](const Result<std::string>& answer) {
                         if (!answer.ok()) return NotReady(worker, incarnation, answer.status());
                         Feed(WorkerLoaded{worker, incarnation, to});
                       });
}

void Dispatcher::Impl::NotReady(int worker, int64_t incarnation, const Status& error) {
  if (IsLost(error)) return Lost(worker, incarnation, error);
  Feed(EntryRefused{worker, incarnation, error.At(WorkerName(worker))});
}

void Dispatcher::Impl::Lost(int worker, int64_t incarnation, const Status& why) {
  bool was_ready = false, still_away = false;
  std::vector<std::function<void()>> cancels;
  Starts starts;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    last_error_[worker] = why;
    was_ready = schedule_.ready(worker) && schedule_.incarnation(worker) == incarnation;
    HandleEvent(WorkerLost{worker, incarnation}, &starts);
    still_away = !schedule_.ready(worker) && away_notes_.Due(worker, SystemClock().Monotonic());
    if (was_ready) {
      lost_workers_[worker] = true;
      // What it may still answer is of an incarnation that has ended.
      for (auto it = cancels_.lower_bound({worker, 0});
           it != cancels_.end() && it->first.first == worker;) {
        cancels.push_back(std::move(it->second));
        it = cancels_.erase(it);
      }
    }
  }
  if (was_ready) {
    LogWarning("worker is lost, its steps run elsewhere",
               {{"worker", std::to_string(worker)}, {"error", why.message()}});
  }
  if (still_away) {
    LogWarning(why.code() == StatusCode::kFailedPrecondition ? "worker refuses to be set up"
                                                             : "worker does not answer",
               {{"worker", std::to_string(worker)}, {"error", why.message()}});
  }
  for (const auto& cancel : cancels) cancel();
  Perform(starts);
}

void Dispatcher::Impl::StartRun(int worker, int64_t incarnation, int64_t step) {
  RunRequest request{.term = options_.term, .incarnation = incarnation, .step = step};
  request.min_versions = servers_->versions();
  request.server_wait_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.return_timeout).count();
  Frame frame;
  {
    MutexLock lock(mutex_);
    const auto it = steps_.find(step);
    if (it == steps_.end()) return;
    request.oldest_step = steps_.begin()->first;
    request.functions = it->second.functions;
    for (const Argument& argument : it->second.arguments) {
      request.arguments.push_back({argument.kind, argument.entry, argument.tensor.type()});
      if (argument.kind == RunArgument::Kind::kTensor) {
        frame.payload.push_back(PieceOf(argument.tensor));
      }
    }
  }
  frame.head = Encode(request);
  auto payload = std::make_shared<std::vector<Tensor>>();
  const Land land = [payload](std::string_view head) -> Result<std::vector<std::span<std::byte>>> {
    MT_ASSIGN_OR_RETURN(const RunReply reply, Decode<RunReply>(head));
    std::vector<std::span<std::byte>> to;
    payload->reserve(reply.outputs.size());
    for (const mesh::NamedType& output : reply.outputs) {
      to.push_back(payload->emplace_back(output.type).mutable_bytes());
    }
    return to;
  };
  auto cancel = peers_[worker]->Call(
      kWorkerRun, std::move(frame), options_.step_timeout, land,
      [this, worker, incarnation, step, payload](const Result<std::string>& head) {
        Answered(worker, incarnation, step, head, std::move(*payload));
      },
      Repeat::kNever);
  MutexLock lock(mutex_);
  // The answer may have come already.
  if (steps_.contains(step) && schedule_.incarnation(worker) == incarnation) {
    cancels_[{worker, step}] = std::move(cancel);
  }
}

void Dispatcher::Impl::Answered(int worker, int64_t incarnation, int64_t step,
                                const Result<std::string>& head, std::vector<Tensor> payload) {
  if (!head.ok()) {
    if (IsLost(head.status())) return Lost(worker, incarnation, head.status());
    return Feed(StepFailed{worker, incarnation, step, head.status().At(WorkerName(worker))});
  }
  auto reply = Decode<RunReply>(*head);
  if (!reply.ok()) {
    return Feed(StepFailed{worker, incarnation, step, reply.status().At(WorkerName(worker))});
  }
  servers_->NoteVersions(reply->versions);
  const Status status = reply->status.At(WorkerName(worker));
  bool server_lost = false;
  Starts starts;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    cancels_.erase({worker, step});
    stats_.pulled_bytes += reply->pulled_bytes;
    stats_.pushed_bytes += reply->pushed_bytes;
    if (schedule_.incarnation(worker) == incarnation) {
      for (const CursorAt& at : reply->cursors) {
        std::string& known = cursors_[worker][at.entry];
        if (known.empty() || IsAfter(at.cursor, known)) known = at.cursor;
      }
    }
    if (status.ok()) {
      if (const auto it = steps_.find(step); it != steps_.end()) {
        StepOutcome& result = it->second.result;
        result = {.worker = worker};
        for (size_t i = 0; i < payload.size(); ++i) {
          result.outputs.emplace_back(std::move(reply->outputs[i].name), std::move(payload[i]));
        }
      }
      HandleEvent(StepDone{worker, incarnation, step}, &starts);
    } else if (schedule_.incarnation(worker) != incarnation) {
      // Of one that was lost: its pushes are refused, which says nothing about the server.
    } else if (reply->cause == RunReply::Cause::kServerAway) {
      server_lost = LoseServer(reply->server, status, &starts);
      HandleEvent(StepReturned{worker, incarnation, step, status}, &starts);
    } else {
      HandleEvent(StepFailed{worker, incarnation, step, status}, &starts);
    }
  }
  if (server_lost) WarnServerAway(reply->server, status);
  Perform(starts);
}

// --- what callers wait for

std::optional<Status> Dispatcher::Impl::TakeError(Starts* starts) {
  if (!schedule_.error() || !schedule_.idle()) return {};
  const Status error = *schedule_.error();
  HandleEvent(ErrorTold{}, starts);
  // Who asks for another try gets all the time for it.
  server_away_since_.clear();
  const Duration now = SystemClock().Monotonic();
  for (const int server : schedule_.servers_away()) server_away_since_[server] = now;
  if (no_worker_since_ >= Duration(0)) no_worker_since_ = now;
  return error;
}

Result<std::shared_ptr<Dispatcher::Handle>> Dispatcher::Impl::Submit(
    std::vector<int64_t> functions, std::vector<Argument> arguments, Duration timeout,
    std::stop_token stop) {
  Starts starts;
  std::shared_ptr<Handle> handle;
  std::optional<Status> error;
  {
    MutexLock lock(mutex_);
    ++waiting_;
    const bool room = changed_.WaitFor(mutex_, stop, timeout, [&]() MT_REQUIRES(mutex_) {
      return schedule_.queued() < options_.max_queued || (schedule_.error() && schedule_.idle());
    });
    --waiting_;
    if (!room) {
      if (stop.stop_requested()) return Cancelled("submit: stopped").From(Origin::kStop);
      return DeadlineExceeded("submit: expected room for a step, got: " +
                              std::to_string(schedule_.queued()) + " that wait")
          .From(Origin::kPeers);
    }
    error = TakeError(&starts);
    if (!error) {
      int64_t needs = 0;
      for (const int64_t f : functions) needs = std::max(needs, f + 1);
      for (const Argument& a : arguments) {
        if (a.kind != RunArgument::Kind::kTensor) needs = std::max(needs, a.entry + 1);
      }
      if (functions.empty() || needs > static_cast<int64_t>(entries_.size())) {
        return InvalidArgument(
            "submit: expected functions, datasets and values of this coordinator, got: others");
      }
      const int64_t step = next_step_++;
      handle = std::shared_ptr<Handle>(new Handle(step));
      steps_.emplace(step, PendingStep{handle, std::move(functions), std::move(arguments), {}});
      HandleEvent(StepSubmitted{step, needs}, &starts);
    }
  }
  Perform(starts);
  if (error) return *error;
  return handle;
}

Status Dispatcher::Impl::Join(Duration timeout, std::stop_token stop) {
  Starts starts;
  std::optional<Status> error;
  {
    MutexLock lock(mutex_);
    ++joining_;
    const bool ended = changed_.WaitFor(mutex_, stop, timeout,
                                        [&]() MT_REQUIRES(mutex_) { return schedule_.idle(); });
    --joining_;
    if (!ended) {
      if (stop.stop_requested()) return Cancelled("join: stopped").From(Origin::kStop);
      return DeadlineExceeded(
                 "join: expected every step to end, got: " + std::to_string(schedule_.queued()) +
                 " that wait and " + std::to_string(schedule_.running()) + " that run")
          .From(Origin::kPeers);
    }
    error = TakeError(&starts);
  }
  Perform(starts);
  return error.value_or(OkStatus());
}

Result<bool> Dispatcher::Impl::Done() {
  Starts starts;
  std::optional<Status> error;
  bool idle = false;
  {
    MutexLock lock(mutex_);
    error = TakeError(&starts);
    idle = schedule_.idle();
  }
  Perform(starts);
  if (error) return *error;
  return idle;
}

Result<StepOutcome> Dispatcher::Impl::Wait(const Handle& step, Duration timeout,
                                           std::stop_token stop) {
  MutexLock lock(mutex_);
  ++waiting_;
  const bool there =
      changed_.WaitFor(mutex_, stop, timeout, [&] { return step.outcome_ != nullptr; });
  --waiting_;
  if (there) {
    if (!step.outcome_->status.ok()) return step.outcome_->status;
    return *step.outcome_;
  }
  const std::string name = "step " + std::to_string(step.step());
  if (stop.stop_requested()) return Cancelled(name + ": stopped").From(Origin::kStop);
  return DeadlineExceeded(name + ": expected it to end in time").From(Origin::kPeers);
}

Status Dispatcher::Impl::CloseGate(Duration timeout, std::stop_token stop) {
  Feed(GateSet{true});
  MutexLock lock(mutex_);
  ++waiting_;
  const bool quiet = changed_.WaitFor(
      mutex_, stop, timeout, [&]() MT_REQUIRES(mutex_) { return schedule_.unfinished() == 0; });
  --waiting_;
  if (quiet) return OkStatus();
  if (stop.stop_requested()) return Cancelled("checkpoint: stopped").From(Origin::kStop);
  return DeadlineExceeded("checkpoint: expected the steps that have begun to end, got: " +
                          std::to_string(schedule_.unfinished()) + " that have not")
      .From(Origin::kPeers);
}

void Dispatcher::Impl::EndWorkers(bool goes_on, Duration timeout) {
  struct Told {
    Mutex mutex;
    CondVar changed;
    size_t left;
  };
  const auto told = std::make_shared<Told>();
  told->left = peers_.size();
  for (const auto& peer : peers_) {
    peer->Call(goes_on ? kWorkerLeave : kWorkerEnd, {Encode(EndRequest{options_.term}), {}},
               timeout, nullptr,
               [told, address = peer->address()](const Result<std::string>& answer) {
                 if (!answer.ok()) {
                   LogInfo("a worker was not told that we leave",
                           {{"worker", address}, {"error", answer.status().message()}});
                 }
                 MutexLock lock(told->mutex);
                 --told->left;
                 told->changed.NotifyAll();
               });
  }
  MutexLock lock(told->mutex);
  told->changed.WaitFor(told->mutex, {}, 2 * timeout, [&] { return told->left == 0; });
}

DispatcherStats Dispatcher::Impl::stats() {
  MutexLock lock(mutex_);
  DispatcherStats stats = stats_;
  stats.steps_rerun = schedule_.steps_rerun();
  stats.workers_lost = schedule_.workers_lost();
  for (int w = 0; w < workers(); ++w) {
    stats.workers_ready += schedule_.ready(w) ? 1 : 0;
    stats.worker_steps.push_back(schedule_.steps_done(w));
  }
  return stats;
}

// --- the outside

Dispatcher::Dispatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dispatcher::~Dispatcher() = default;

Result<std::unique_ptr<Dispatcher>> Dispatcher::Create(DispatcherOptions options,
                                                       ServerGroup* servers) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (const std::string& address : options.workers) {
    MT_ASSIGN_OR_RETURN(auto peer, Peer::Create(address, options.identity));
    peers.push_back(std::move(peer));
  }
  auto impl = std::make_unique<Impl>(std::move(options), servers, std::move(peers));
  MT_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Dispatcher>(new Dispatcher(std::move(impl)));
}

int Dispatcher::workers() const { return impl_->workers(); }
int64_t Dispatcher::AddEntry(const Entry& entry, const std::vector<std::string>& cursors) {
  return impl_->AddEntries({entry}, cursors);
}
int64_t Dispatcher::AddEntries(std::vector<Entry> by_worker) {
  MT_CHECK(static_cast<int>(by_worker.size()) == workers());
  return impl_->AddEntries(std::move(by_worker), {});
}
std::vector<Dispatcher::Cursor> Dispatcher::cursors() const { return impl_->cursors(); }
std::vector<int64_t> Dispatcher::live_incarnations() const { return impl_->live_incarnations(); }
Result<std::shared_ptr<Dispatcher::Handle>> Dispatcher::Submit(std::vector<int64_t> functions,
                                                               std::vector<Argument> arguments,
                                                               Duration timeout,
                                                               std::stop_token stop) {
  return impl_->Submit(std::move(functions), std::move(arguments), timeout, stop);
}
Status Dispatcher::Join(Duration timeout, std::stop_token stop) {
  return impl_->Join(timeout, stop);
}
Result<bool> Dispatcher::Done() { return impl_->Done(); }
Result<StepOutcome> Dispatcher::Wait(const Handle& step, Duration timeout, std::stop_token stop) {
  return impl_->Wait(step, timeout, stop);
}
Status Dispatcher::CloseGate(Duration timeout, std::stop_token stop) {
  return impl_->CloseGate(timeout, stop);
}
void Dispatcher::OpenGate() { impl_->OpenGate(); }
void Dispatcher::EndWorkers(bool goes_on, Duration timeout) { impl_->EndWorkers(goes_on, timeout); }
Status Dispatcher::ServersWithin(Duration away) const { return impl_->ServersWithin(away); }
DispatcherStats Dispatcher::stats() const { return impl_->stats(); }

}  // namespace meshtrain::parameter
