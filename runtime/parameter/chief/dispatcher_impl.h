// What dispatcher.cc and dispatcher_watch.cc share: the dispatcher's state, and who may touch it.
// Callers' threads and gRPC's hand the schedule events under the lock, and make the calls that it
// asks for without it; the monitor's thread watches who is there.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/thread.h"
#include "runtime/parameter/chief/dispatcher.h"
#include "runtime/parameter/chief/repeat_log.h"
#include "runtime/parameter/chief/schedule.h"

namespace meshtrain::parameter {

inline std::string WorkerName(int worker) { return "worker-" + std::to_string(worker); }
inline std::string ServerName(int server) { return "ps-" + std::to_string(server); }

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
        last_error_(peers_.size()) {}
  Status Start() {
    MT_ASSIGN_OR_RETURN(monitor_,
                        StartThread("steps of workers", [this](std::stop_token s) { Monitor(s); }));
    return OkStatus();
  }
  ~Impl() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    monitor_.request_stop();
    if (monitor_.joinable()) monitor_.join();
    const auto quiet = [this](auto done) {
      MutexLock lock(mutex_);
      while (!changed_.WaitFor(mutex_, {}, std::chrono::seconds(10), done)) {
      }
    };
    quiet([this]() MT_REQUIRES(mutex_) { return performing_ == 0; });
    peers_.clear();  // cancels the calls and waits for their answers
    // The servers are not ours, and their pings point here.
    quiet([this]() MT_REQUIRES(mutex_) {
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
  Status ServersWithin(Duration away) {
    MutexLock lock(mutex_);
    return MissingServer(away);
  }
  DispatcherStats stats();

 private:
  // A monitor that has not looked for so long stood still, and the process with it.
  static constexpr Duration kStoodStill = std::chrono::seconds(1);

  struct PendingStep {
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
                std::vector<mesh::Tensor> payload);
  void Ready(int worker, int64_t incarnation, int64_t to);
  // A call of setting up, or loading, failed.
  void NotReady(int worker, int64_t incarnation, const Status& error);
  void Lost(int worker, int64_t incarnation, const Status& why);

  void Monitor(std::stop_token stop);
  // `judge`: whether no answer means that it is lost.
  void PingWorker(int worker, int64_t incarnation, bool judge);
  void PingServer(int server);
  void ServerAnswered(int server, const Status& status);
  // A server is away, by a ping or by a worker that does not reach it; whether that is news, for
  // WarnServerAway.
  bool LoseServer(int server, const Status& why, Starts* starts) MT_REQUIRES(mutex_);
  static void WarnServerAway(int server, const Status& why);
  Status MissingServer(Duration away) MT_REQUIRES(mutex_);
  std::vector<std::string> LostNames() MT_REQUIRES(mutex_);
  std::vector<int64_t> LiveIncarnations() MT_REQUIRES(mutex_) {
    std::vector<int64_t> live;
    for (int w = 0; w < workers(); ++w) live.push_back(schedule_.live_incarnation(w));
    return live;
  }
  // Whether an answer that did not come in time says nothing: a process that stands still hears
  // nobody.
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
  std::map<int64_t, PendingStep> steps_ MT_GUARDED_BY(mutex_);
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
  RepeatLog away_notes_ MT_GUARDED_BY(mutex_);            // of workers that are not set up
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

}  // namespace meshtrain::parameter
