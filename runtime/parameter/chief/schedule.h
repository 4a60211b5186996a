// Which worker runs which step, decided from what has happened: (state, event) -> (state, actions).
// Pure; dispatcher.h carries the actions out and brings back the events.
//
// Kept true, whatever happens and in whatever order:
//   - a submitted step ends once: in kFinish, or in kCancel after an error of the job
//   - a step runs on one worker at a time as far as is known; one whose worker is lost runs again,
//     before those that were submitted after it
//   - a step that was returned for want of a server runs again where it ran, which knows what of it
//     the servers have; elsewhere only once that worker's incarnation has ended
//   - an answer from an incarnation that has ended changes nothing
//   - nothing is sent to a worker that is not set up, lacks an entry that the step needs, or has
//     its hands full
//   - of those that may take a step the least busy does, and of equals whoever waited longest: all
//     take part, even where fewer steps run at once than there are workers
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"

namespace meshtrain::parameter {

struct ScheduleOptions {
  int workers = 1;
  int in_flight = 1;      // steps that a worker holds at once
  int max_attempts = 10;  // a step during which so many workers were lost is the job's error: it
                          // may well kill them; so is one that was returned so often
};

// --- events

struct StepSubmitted {
  int64_t step = 0;
  int64_t entries = 0;  // that a worker must have
};
struct EntriesAdded {
  int64_t entries = 0;  // that there are now
};
// A worker may be there: on its first try, or some time after it was lost.
struct WorkerTried {
  int worker = 0;
};
struct WorkerSetUp {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t entries = 0;  // that it was given
};
struct WorkerLoaded {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t entries = 0;  // that it has now
};
struct WorkerLost {
  int worker = 0;
  int64_t incarnation = 0;
};
// An entry that no worker can take (a program that cannot be planned).
struct EntryRefused {
  int worker = 0;
  int64_t incarnation = 0;
  Status error;
};
struct StepDone {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t step = 0;
};
// By its own fault.
struct StepFailed {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t step = 0;
  Status error;
};
// Neither done nor at fault: a server was away for as long as one is waited for. Its disk may be
// full (kResourceExhausted): then nothing else is waited for, and that is the job's error.
struct StepReturned {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t step = 0;
  Status error;
};
struct ServerLost {
  int server = 0;
};
struct ServerBack {
  int server = 0;
};
// While a gate is closed no step begins, but for one that was returned and runs again where it ran:
// a server may have its push, and another not yet.
struct GateSet {
  bool closed = false;
};
// Nobody came back in time, a server lost its state.
struct JobFailed {
  Status error;
};
// The error was told to the user.
struct ErrorTold {};

using ScheduleEvent =
    std::variant<StepSubmitted, EntriesAdded, WorkerTried, WorkerSetUp, WorkerLoaded, WorkerLost,
                 EntryRefused, StepDone, StepFailed, StepReturned, ServerLost, ServerBack, GateSet,
                 JobFailed, ErrorTold>;

// --- actions

struct ScheduleAction {
  enum class Kind : uint8_t {
    kSetUp,   // worker, incarnation: give it entries [0, to)
    kLoad,    // worker, incarnation: give it entries [from, to)
    kRun,     // worker, incarnation, step
    kFinish,  // step: its result stands
    kCancel,  // step, error
  };
  Kind kind = Kind::kRun;
  int worker = -1;
  int64_t incarnation = 0;
  int64_t step = -1;
  int64_t from = 0;
  int64_t to = 0;
  Status error;
  friend bool operator==(const ScheduleAction&, const ScheduleAction&) = default;
  std::string ToString() const;  // "run step 3 on worker-1 (2)"
};

class Schedule {
 public:
  explicit Schedule(ScheduleOptions options);

  std::vector<ScheduleAction> On(const ScheduleEvent& event);

  // Every submitted step has ended.
  bool idle() const { return steps_.empty(); }
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t running() const { return static_cast<int64_t>(steps_.size() - queue_.size()); }
  // Those that run, and those of which a server may have a part: a closed gate lets them end.
  int64_t unfinished() const {
    return running() + std::count_if(queue_.begin(), queue_.end(), [this](int64_t step) {
             return Keeper(steps_.at(step)) != nullptr;
           });
  }
  bool ready(int worker) const { return workers_[worker].phase == Phase::kReady; }
  bool any_ready() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const Worker& w) { return w.phase == Phase::kReady; });
  }
  bool away(int worker) const { return workers_[worker].phase == Phase::kAway; }
  int64_t incarnation(int worker) const { return workers_[worker].incarnation; }
  // The oldest that may still push: this one, or the next one of a worker that is away.
  int64_t live_incarnation(int worker) const {
    return incarnation(worker) + (away(worker) ? 1 : 0);
  }
  int64_t steps_done(int worker) const { return workers_[worker].done; }
  const std::set<int>& servers_away() const { return servers_away_; }
  const std::optional<Status>& error() const { return error_; }
  int64_t workers_lost() const { return workers_lost_; }
  int64_t steps_rerun() const { return steps_rerun_; }

 private:
  enum class Phase : uint8_t { kAway, kSettingUp, kReady };
  struct Worker {
    Phase phase = Phase::kAway;
    int64_t incarnation = 0;  // of the last set-up
    int64_t entries = 0;
    bool loading = false;
    std::set<int64_t> running;
    int64_t turn = 0;  // when it was last given a step: dispatched_ by then
    int64_t done = 0;
  };
  struct OpenStep {
    int64_t entries = 0;
    int lost = 0;  // workers
    int returned = 0;
    int worker = -1;  // -1: queued
    // Where it was returned from; -1: nowhere.
    int keeper = -1;
    int64_t keeper_incarnation = 0;
  };

  // The worker, if it is in this incarnation and not away.
  Worker* Find(int worker, int64_t incarnation);
  const Worker* Find(int worker, int64_t incarnation) const;
  // The worker that the step was returned from and that alone may run it again; null: none.
  const Worker* Keeper(const OpenStep& step) const {
    return step.keeper < 0 ? nullptr : Find(step.keeper, step.keeper_incarnation);
  }
  // The step's entry, if that worker runs it; it runs there no more.
  std::map<int64_t, OpenStep>::iterator Take(int worker, int64_t incarnation, int64_t step);
  void Fail(const Status& error);
  // The step ends with the error, which is the job's.
  void FailWith(std::map<int64_t, OpenStep>::iterator step, const Status& error);
  void PutBack(std::map<int64_t, OpenStep>::iterator step);
  void Dispatch();
  // The worker that takes the step now, -1: none. Asks for what workers lack to take it.
  int Choose(const OpenStep& step);

  void Handle(const StepSubmitted& e);
  void Handle(const EntriesAdded& e);
  void Handle(const WorkerTried& e);
  void Handle(const WorkerSetUp& e);
  void Handle(const WorkerLoaded& e);
  void Handle(const WorkerLost& e);
  void Handle(const EntryRefused& e);
  void Handle(const StepDone& e);
  void Handle(const StepFailed& e);
  void Handle(const StepReturned& e);
  void Handle(const ServerLost& e) { servers_away_.insert(e.server); }
  void Handle(const ServerBack& e) { servers_away_.erase(e.server); }
  void Handle(const GateSet& e) { gate_closed_ = e.closed; }
  void Handle(const JobFailed& e) { Fail(e.error); }
  void Handle(const ErrorTold&) { error_.reset(); }

  ScheduleOptions options_;
  std::vector<Worker> workers_;
  std::map<int64_t, OpenStep> steps_;  // not ended
  std::set<int64_t> queue_;            // those that run nowhere; the lowest is next
  int64_t entries_ = 0;
  int64_t dispatched_ = 0;
  std::set<int> servers_away_;
  bool gate_closed_ = false;
  std::optional<Status> error_;
  int64_t workers_lost_ = 0;
  int64_t steps_rerun_ = 0;
  std::vector<ScheduleAction> actions_;  // of the event at hand
};

}  // namespace meshtrain::parameter
