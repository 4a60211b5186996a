#include "runtime/distribute/parameter/dispatcher.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/data/cursor.h"
#include "runtime/distribute/parameter/away_notes.h"
#include "runtime/distribute/parameter/chief_watch.h"
#include "runtime/distribute/parameter/schedule.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using Kind = ScheduleAction::Kind;

namespace {

// How often it is tried to set a worker up that is away.
constexpr Duration kTryEvery = std::chrono::milliseconds(300);
// A monitor that has not looked for so long stood still, and the process with it.
constexpr Duration kStoodStill = std::chrono::seconds(1);

std::string WorkerName(int worker) { return "worker-" + std::to_string(worker); }
std::string ServerName(int server) { return "ps-" + std::to_string(server); }

// Of a call to a worker: it was lost, or is to be set up anew. Other errors would come again.
bool IsLost(StatusCode code) {
  return IsAway(code) || code == StatusCode::kFailedPrecondition || code == StatusCode::kUnknown;
}

std::string Seconds(Duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
}

// Which of two places in one dataset is further on.
bool IsAfter(const std::string& a, const std::string& b) {
  const auto left = data::Cursor::Parse(a), right = data::Cursor::Parse(b);
  if (!left.ok() || !right.ok()) return true;
  return std::pair(left->epoch, left->batch) > std::pair(right->epoch, right->batch);
}

}  // namespace

class Dispatcher::Impl {
 public:
  Impl(DispatcherOptions options, ServerGroup* servers, std::vector<std::unique_ptr<Peer>> peers)
      : options_(std::move(options)),
        servers_(servers),
        peers_(std::move(peers)),
        schedule_({.workers = static_cast<int>(peers_.size()),
                   .in_flight = options_.in_flight,
                   .max_attempts = options_.max_attempts}),
        lost_workers_(peers_.size(), false),
        pinging_workers_(peers_.size(), false),
        pinging_servers_(static_cast<size_t>(servers_->size()), false),
        cursors_(peers_.size()),
        last_error_(peers_.size()) {
    monitor_ = std::jthread([this](std::stop_token stop) { Monitor(stop); });
  }
  ~Impl() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    monitor_.request_stop();
    monitor_.join();
    const auto quiet = [this](auto done) {
      MutexLock lock(mutex_);
      while (!changed_.WaitFor(mutex_, {}, std::chrono::seconds(10), done)) {
      }
    };
    quiet([this] { return performing_ == 0; });
    peers_.clear();  // cancels the calls and waits for their answers
    // The servers are not ours, and their pings point here.
    quiet([this] {
      return std::none_of(pinging_servers_.begin(), pinging_servers_.end(),
                          [](bool b) { return b; });
    });
  }

  int workers() const { return static_cast<int>(peers_.size()); }

  int64_t AddEntries(std::vector<Entry> by_worker, const std::vector<std::string>& cursors) {
    int64_t count = 0;
    {
      MutexLock lock(mutex_);
      for (size_t w = 0; w < cursors.size(); ++w) {
        if (!cursors[w].empty()) cursors_[w][static_cast<int64_t>(entries_.size())] = cursors[w];
      }
      entries_.push_back(std::make_shared<const std::vector<Entry>>(std::move(by_worker)));
      count = static_cast<int64_t>(entries_.size());
    }
    Feed(EntriesAdded{count});
    return count - 1;
  }
  std::vector<Cursor> cursors() {
    MutexLock lock(mutex_);
    std::vector<Cursor> all;
    for (int w = 0; w < workers(); ++w) {
      for (const auto& [entry, cursor] : cursors_[w]) all.push_back({w, entry, cursor});
    }
    return all;
  }
  std::vector<int64_t> live_incarnations() {
    MutexLock lock(mutex_);
    return LiveIncarnations();
  }

  Result<std::shared_ptr<Handle>> Submit(std::vector<int64_t> functions,
                                         std::vector<Argument> arguments, Duration timeout,
                                         std::stop_token stop);
  Status Join(Duration timeout, std::stop_token stop);
  Result<bool> Done();
  Result<StepOutcome> Wait(const Handle& step, Duration timeout, std::stop_token stop);
  Status CloseGate(Duration timeout, std::stop_token stop);
  void OpenGate() { Feed(GateSet{false}); }
  void EndWorkers(bool goes_on, Duration timeout);
  DispatcherStats stats();

 private:
  struct Step {
    std::shared_ptr<Handle> handle;
    std::vector<int64_t> functions;
    std::vector<Argument> arguments;
    StepOutcome result;  // of the answer that is being handled
  };
  // Calls to make once the lock is free.
  using Starts = std::vector<std::function<void()>>;

  // Hands the schedule an event and carries out what it says.
  void Feed(const ScheduleEvent& event) {
    Starts starts;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      HandleEvent(event, &starts);
    }
    Perform(starts);
  }
  // The same under the lock; the calls to make are added to `starts`, for Perform.
  void HandleEvent(const ScheduleEvent& event, Starts* starts) MT_REQUIRES(mutex_);
  void Perform(const Starts& starts) {
    if (starts.empty()) return;
    for (const auto& start : starts) start();
    MutexLock lock(mutex_);
    performing_ -= static_cast<int64_t>(starts.size());
    if (closed_) changed_.NotifyAll();
  }
  void End(int64_t step, StepOutcome outcome) MT_REQUIRES(mutex_);
  // The job's error, if there is one and nothing runs any more; it is forgotten then.
  std::optional<Status> TakeError(Starts* starts) MT_REQUIRES(mutex_);

  void StartSetUp(int worker, int64_t incarnation, int64_t to);
  void StartLoad(int worker, int64_t incarnation, int64_t from, int64_t to);
  void StartRun(int worker, int64_t incarnation, int64_t step);
  void Answered(int worker, int64_t incarnation, int64_t step, const Result<std::string>& head,
                std::vector<Tensor> payload);
  void Ready(int worker, int64_t incarnation, int64_t to);
  // A call of setting up, or loading, failed.
  void NotReady(int worker, int64_t incarnation, const Status& error);
  void Lost(int worker, int64_t incarnation, const Status& why);

  void Monitor(std::stop_token stop);
  // `judge`: whether no answer means that it is lost.
  void PingWorker(int worker, int64_t incarnation, bool judge);
  void PingServer(int server);
  void ServerAnswered(int server, const Status& status);
  std::vector<std::string> LostNames() MT_REQUIRES(mutex_);
  std::vector<int64_t> LiveIncarnations() MT_REQUIRES(mutex_) {
    std::vector<int64_t> live;
    for (int w = 0; w < workers(); ++w) live.push_back(schedule_.live_incarnation(w));
    return live;
  }
  // Whether an answer that did not come in time says nothing: nobody hears while he stands still.
  bool StoodStillSince(Duration asked) {
    MutexLock lock(mutex_);
    return woke_ >= asked || SystemClock().Monotonic() - looked_ > kStoodStill;
  }
  void CheckTimes();

  const DispatcherOptions options_;
  ServerGroup* const servers_;
  std::vector<std::unique_ptr<Peer>> peers_;

  Mutex mutex_;
  CondVar changed_;
  bool closed_ MT_GUARDED_BY(mutex_) = false;
  Schedule schedule_ MT_GUARDED_BY(mutex_);
  std::map<int64_t, Step> steps_ MT_GUARDED_BY(mutex_);
  int64_t next_step_ MT_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<const std::vector<Entry>>> entries_
      MT_GUARDED_BY(mutex_);                      // one for all, or one each
  int64_t performing_ MT_GUARDED_BY(mutex_) = 0;  // calls that are about to be made
  int waiting_ MT_GUARDED_BY(mutex_) = 0;         // threads in Submit, Wait or CloseGate
  int joining_ MT_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<int, int64_t>, std::function<void()>> cancels_
      MT_GUARDED_BY(mutex_);                              // by worker and step
  std::vector<bool> lost_workers_ MT_GUARDED_BY(mutex_);  // and not set up anew yet
  std::vector<bool> pinging_workers_ MT_GUARDED_BY(mutex_), pinging_servers_ MT_GUARDED_BY(mutex_);
  std::vector<std::map<int64_t, std::string>> cursors_
      MT_GUARDED_BY(mutex_);                              // by worker and entry
  std::vector<Status> last_error_ MT_GUARDED_BY(mutex_);  // by worker
  AwayNotes away_notes_ MT_GUARDED_BY(mutex_);            // of workers that are not set up
  DispatcherStats stats_ MT_GUARDED_BY(mutex_);
  Duration looked_ MT_GUARDED_BY(mutex_) = SystemClock().Monotonic();  // the monitor
  Duration woke_ MT_GUARDED_BY(mutex_){};  // when it went on after it had stood still
  // Monotonic; when it began, -1: one is ready. HandleEvent's.
  Duration no_worker_since_ MT_GUARDED_BY(mutex_) = SystemClock().Monotonic();
  bool had_worker_ MT_GUARDED_BY(mutex_) = false;
  std::map<int, Duration> server_away_since_ MT_GUARDED_BY(mutex_);
  std::map<int, Status> server_error_ MT_GUARDED_BY(mutex_);

  std::jthread monitor_;
};

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
  WorkerSetUpRequest request{.session = options_.session,
                             .worker = worker,
                             .workers = workers(),
                             .incarnation = incarnation};
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
  LoadRequest request{.session = options_.session, .incarnation = incarnation, .first = from};
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
  if (IsLost(error.code())) return Lost(worker, incarnation, error);
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
    LogWarning("worker does not answer",
               {{"worker", std::to_string(worker)}, {"error", why.message()}});
  }
  for (const auto& cancel : cancels) cancel();
  Perform(starts);
}

void Dispatcher::Impl::StartRun(int worker, int64_t incarnation, int64_t step) {
  RunRequest request{.session = options_.session, .incarnation = incarnation, .step = step};
  request.min_versions = servers_->versions();
  request.server_wait_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.return_timeout).count();
  Frame frame;
  {
    MutexLock lock(mutex_);
    const auto it = steps_.find(step);
    if (it == steps_.end()) return;
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
    for (const NamedType& output : reply.outputs) {
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
    if (IsLost(head.status().code())) return Lost(worker, incarnation, head.status());
    return Feed(StepFailed{worker, incarnation, step, head.status().At(WorkerName(worker))});
  }
  auto reply = Decode<RunReply>(*head);
  if (!reply.ok()) {
    return Feed(StepFailed{worker, incarnation, step, reply.status().At(WorkerName(worker))});
  }
  servers_->NoteVersions(reply->versions);
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
    const Status status = reply->status.At(WorkerName(worker));
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
      const int server = reply->server;
      if (server_away_since_.emplace(server, SystemClock().Monotonic()).second) {
        ++stats_.servers_lost;
      }
      server_error_[server] = status;
      HandleEvent(ServerLost{server}, &starts);
      HandleEvent(StepReturned{worker, incarnation, step}, &starts);
    } else {
      HandleEvent(StepFailed{worker, incarnation, step, status}, &starts);
    }
  }
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
    const bool room = changed_.WaitFor(mutex_, stop, timeout, [&] {
      return schedule_.queued() < options_.max_queued || (schedule_.error() && schedule_.idle());
    });
    --waiting_;
    if (!room) {
      if (stop.stop_requested()) return Cancelled("submit: stopped");
      return DeadlineExceeded("submit: expected room for a step, got: " +
                              std::to_string(schedule_.queued()) + " that wait");
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
      steps_.emplace(step, Step{handle, std::move(functions), std::move(arguments), {}});
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
    const bool ended = changed_.WaitFor(mutex_, stop, timeout, [&] { return schedule_.idle(); });
    --joining_;
    if (!ended) {
      if (stop.stop_requested()) return Cancelled("join: stopped");
      return DeadlineExceeded(
          "join: expected every step to end, got: " + std::to_string(schedule_.queued()) +
          " that wait and " + std::to_string(schedule_.running()) + " that run");
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
  if (stop.stop_requested()) return Cancelled("step " + std::to_string(step.step()) + ": stopped");
  return DeadlineExceeded("step " + std::to_string(step.step()) + ": expected it to end in time");
}

Status Dispatcher::Impl::CloseGate(Duration timeout, std::stop_token stop) {
  Feed(GateSet{true});
  MutexLock lock(mutex_);
  ++waiting_;
  const bool quiet =
      changed_.WaitFor(mutex_, stop, timeout, [&] { return schedule_.running() == 0; });
  --waiting_;
  if (quiet) return OkStatus();
  if (stop.stop_requested()) return Cancelled("checkpoint: stopped");
  return DeadlineExceeded("checkpoint: expected the running steps to end, got: " +
                          std::to_string(schedule_.running()) + " that still run");
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
    peer->Call(goes_on ? kWorkerLeave : kWorkerEnd, {Encode(EndRequest{options_.session}), {}},
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

// --- watching

void Dispatcher::Impl::Monitor(std::stop_token stop) {
  Duration next_try{};  // monotonic
  while (!stop.stop_requested()) {
    const Duration now = SystemClock().Monotonic();
    const bool may_try = now >= next_try;
    if (may_try) next_try = now + kTryEvery;
    {
      MutexLock lock(mutex_);
      if (now - looked_ > kStoodStill) woke_ = now;
      looked_ = now;
    }
    for (int w = 0; w < workers(); ++w) {
      bool away = false, ready = false, failed = false;
      int64_t incarnation = 0;
      {
        MutexLock lock(mutex_);
        away = schedule_.away(w);
        ready = schedule_.ready(w);
        incarnation = schedule_.incarnation(w);
        failed = schedule_.error().has_value();
      }
      // One that is being set up is not judged: it only hears that we are there.
      if (!away) PingWorker(w, incarnation, ready);
      if (away && may_try && !failed) Feed(WorkerTried{w});
    }
    for (int s = 0; s < servers_->size(); ++s) PingServer(s);
    CheckTimes();
    SystemClock().SleepFor(options_.ping, stop);
  }
}

std::vector<std::string> Dispatcher::Impl::LostNames() {
  std::vector<std::string> names;
  for (int w = 0; w < workers(); ++w) {
    if (lost_workers_[w]) names.push_back(WorkerName(w));
  }
  for (const auto& [server, since] : server_away_since_) names.push_back(ServerName(server));
  return names;
}

void Dispatcher::Impl::PingWorker(int worker, int64_t incarnation, bool judge) {
  PingRequest request;
  {
    MutexLock lock(mutex_);
    if (pinging_workers_[worker]) return;
    pinging_workers_[worker] = true;
    request.lost = LostNames();
  }
  const Duration asked = SystemClock().Monotonic();
  peers_[worker]->Call(
      kWorkerPing, {Encode(request), {}}, options_.lost_after, nullptr,
      [this, worker, incarnation, judge, asked](const Result<std::string>& answer) {
        {
          MutexLock lock(mutex_);
          pinging_workers_[worker] = false;
        }
        if (!judge) return;
        if (answer.status().code() == StatusCode::kDeadlineExceeded && StoodStillSince(asked)) {
          return;
        }
        if (!answer.ok()) return Lost(worker, incarnation, answer.status());
        const auto reply = Decode<WorkerPingReply>(*answer);
        if (reply.ok() && reply->session == options_.session && reply->incarnation == incarnation) {
          return;
        }
        Lost(worker, incarnation, FailedPrecondition("its process is another one"));
      });
}

void Dispatcher::Impl::PingServer(int server) {
  std::vector<std::string> names;
  std::vector<int64_t> live;
  {
    MutexLock lock(mutex_);
    if (closed_ || pinging_servers_[server]) return;
    pinging_servers_[server] = true;
    names = LostNames();
    live = LiveIncarnations();
  }
  const Duration asked = SystemClock().Monotonic();
  servers_->Ping(server, std::move(names), std::move(live), options_.lost_after,
                 [this, server, asked](const Status& status) {
                   const bool says_nothing =
                       status.code() == StatusCode::kDeadlineExceeded && StoodStillSince(asked);
                   if (!says_nothing) ServerAnswered(server, status);
                   MutexLock lock(mutex_);
                   pinging_servers_[server] = false;
                   changed_.NotifyAll();
                 });
}

void Dispatcher::Impl::ServerAnswered(int server, const Status& status) {
  Starts starts;
  bool lost = false, back = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (status.ok()) {
      back = server_away_since_.erase(server) > 0;
      HandleEvent(ServerBack{server}, &starts);
    } else if (status.code() == StatusCode::kDataLoss) {
      HandleEvent(JobFailed{status}, &starts);
    } else {
      lost = server_away_since_.emplace(server, SystemClock().Monotonic()).second;
      if (lost) ++stats_.servers_lost;
      server_error_[server] = status;
      HandleEvent(ServerLost{server}, &starts);
    }
  }
  if (lost) {
    LogWarning("parameter server is away",
               {{"ps", std::to_string(server)}, {"error", status.message()}});
  }
  if (back) LogInfo("parameter server is back", {{"ps", std::to_string(server)}});
  Perform(starts);
}

// Who did not come back in time ends the job's steps.
void Dispatcher::Impl::CheckTimes() {
  Starts starts;
  std::map<std::pair<int, int64_t>, std::function<void()>> cancels;
  {
    MutexLock lock(mutex_);
    if (closed_ || schedule_.idle() || schedule_.error()) {
      if (no_worker_since_ >= Duration(0) && schedule_.idle()) {
        no_worker_since_ = SystemClock().Monotonic();
      }
      return;
    }
    const Duration now = SystemClock().Monotonic();
    for (const auto& [server, since] : server_away_since_) {
      if (now - since < options_.return_timeout) continue;
      HandleEvent(JobFailed{Unavailable(ServerName(server) + ": expected it back within " +
                                        Seconds(options_.return_timeout) +
                                        ", got: " + server_error_[server].message())},
                  &starts);
      break;
    }
    const Duration patience = had_worker_ ? options_.return_timeout : options_.start_timeout;
    if (no_worker_since_ >= Duration(0) && now - no_worker_since_ >= patience) {
      std::string got;
      for (int w = 0; w < workers(); ++w) {
        got += (w > 0 ? "; " : "") + WorkerName(w) + ": " + last_error_[w].message();
      }
      HandleEvent(
          JobFailed{Unavailable("expected a worker within " + Seconds(patience) + ", got: " + got)},
          &starts);
    }
    // What still runs waits for the same.
    if (schedule_.error()) cancels.swap(cancels_);
  }
  Perform(starts);
  for (const auto& [place, cancel] : cancels) cancel();
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
  return std::unique_ptr<Dispatcher>(
      new Dispatcher(std::make_unique<Impl>(std::move(options), servers, std::move(peers))));
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
DispatcherStats Dispatcher::stats() const { return impl_->stats(); }

}  // namespace meshtrain::parameter
