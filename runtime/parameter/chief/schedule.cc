#include "runtime/parameter/chief/schedule.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::parameter {

using Kind = ScheduleAction::Kind;

std::string ScheduleAction::ToString() const {
  const std::string on =
      "worker-" + std::to_string(worker) + " (" + std::to_string(incarnation) + ")";
  switch (kind) {
    case Kind::kSetUp:
      return "set up " + on + " with " + std::to_string(to);
    case Kind::kLoad:
      return "load " + std::to_string(from) + " to " + std::to_string(to) + " on " + on;
    case Kind::kRun:
      return "run step " + std::to_string(step) + " on " + on;
    case Kind::kFinish:
      return "finish step " + std::to_string(step);
    case Kind::kCancel:
      return "cancel step " + std::to_string(step);
  }
  return "?";
}

namespace {

Status BecauseOf(const Status& error) {
  return error.WithCode(StatusCode::kCancelled)
      .WithMessage("another step failed: " + error.message());
}

}  // namespace

Schedule::Schedule(ScheduleOptions options)
    : options_(options), workers_(static_cast<size_t>(options.workers)) {}

std::vector<ScheduleAction> Schedule::On(const ScheduleEvent& event) {
  actions_.clear();
  std::visit([&](const auto& e) { Handle(e); }, event);
  Dispatch();
  return std::move(actions_);
}

const Schedule::Worker* Schedule::Find(int worker, int64_t incarnation) const {
  MT_CHECK(worker >= 0 && worker < static_cast<int>(workers_.size()));
  const Worker& w = workers_[worker];
  return w.phase != Phase::kAway && w.incarnation == incarnation ? &w : nullptr;
}

Schedule::Worker* Schedule::Find(int worker, int64_t incarnation) {
  return const_cast<Worker*>(std::as_const(*this).Find(worker, incarnation));
}

std::map<int64_t, Schedule::OpenStep>::iterator Schedule::Take(int worker, int64_t incarnation,
                                                               int64_t step) {
  Worker* const w = Find(worker, incarnation);
  if (w == nullptr || w->running.erase(step) == 0) return steps_.end();
  const auto it = steps_.find(step);
  MT_CHECK(it != steps_.end() && it->second.worker == worker);
  return it;
}

void Schedule::Fail(const Status& error) {
  if (!error_) error_ = error;
  for (const int64_t step : queue_) {
    actions_.push_back({.kind = Kind::kCancel, .step = step, .error = BecauseOf(error)});
    steps_.erase(step);
  }
  queue_.clear();
}

void Schedule::FailWith(std::map<int64_t, OpenStep>::iterator step, const Status& error) {
  actions_.push_back({.kind = Kind::kCancel, .step = step->first, .error = error});
  steps_.erase(step);
  Fail(error);
}

void Schedule::PutBack(std::map<int64_t, OpenStep>::iterator step) {
  if (error_) {
    actions_.push_back({.kind = Kind::kCancel, .step = step->first, .error = BecauseOf(*error_)});
    steps_.erase(step);
    return;
  }
  ++steps_rerun_;
  step->second.worker = -1;
  queue_.insert(step->first);
}

int Schedule::Choose(const OpenStep& step) {
  const Worker* const keeper = Keeper(step);
  int best = -1;
  for (int i = 0; i < static_cast<int>(workers_.size()); ++i) {
    Worker& w = workers_[i];
    if (w.phase != Phase::kReady || w.running.size() >= static_cast<size_t>(options_.in_flight)) {
      continue;
    }
    if (keeper != nullptr && keeper != &w) continue;
    if (w.entries < step.entries) {
      if (!w.loading) {
        w.loading = true;
        actions_.push_back({.kind = Kind::kLoad,
                            .worker = i,
                            .incarnation = w.incarnation,
                            .from = w.entries,
                            .to = entries_});
      }
      continue;
    }
    const auto busy = [](const Worker& worker) {
      return std::pair(worker.running.size(), worker.turn);
    };
    if (best < 0 || busy(w) < busy(workers_[best])) best = i;
  }
  return best;
}

void Schedule::Dispatch() {
  if (error_ || !servers_away_.empty()) return;
  for (auto next = queue_.begin(); next != queue_.end();) {
    const int64_t step = *next;
    OpenStep& open = steps_.at(step);
    if (gate_closed_ && Keeper(open) == nullptr) {
      ++next;
      continue;
    }
    const int best = Choose(open);
    if (best < 0) {
      // Others need not wait with it for its worker.
      if (open.keeper < 0) return;
      ++next;
      continue;
    }
    next = queue_.erase(next);
    open.worker = best;
    workers_[best].running.insert(step);
    workers_[best].turn = ++dispatched_;
    actions_.push_back({.kind = Kind::kRun,
                        .worker = best,
                        .incarnation = workers_[best].incarnation,
                        .step = step});
  }
}

void Schedule::Handle(const StepSubmitted& e) {
  MT_CHECK(e.entries <= entries_);
  if (error_) {
    actions_.push_back({.kind = Kind::kCancel, .step = e.step, .error = BecauseOf(*error_)});
    return;
  }
  MT_CHECK(steps_.emplace(e.step, OpenStep{.entries = e.entries}).second);
  queue_.insert(e.step);
}

void Schedule::Handle(const EntriesAdded& e) { entries_ = std::max(entries_, e.entries); }

void Schedule::Handle(const WorkerTried& e) {
  Worker& w = workers_.at(e.worker);
  if (w.phase != Phase::kAway) return;
  w.phase = Phase::kSettingUp;
  ++w.incarnation;
  actions_.push_back(
      {.kind = Kind::kSetUp, .worker = e.worker, .incarnation = w.incarnation, .to = entries_});
}

void Schedule::Handle(const WorkerSetUp& e) {
  Worker* const w = Find(e.worker, e.incarnation);
  if (w == nullptr || w->phase != Phase::kSettingUp) return;
  w->phase = Phase::kReady;
  w->entries = e.entries;
  w->loading = false;
}

void Schedule::Handle(const WorkerLoaded& e) {
  Worker* const w = Find(e.worker, e.incarnation);
  if (w == nullptr || !w->loading) return;
  w->loading = false;
  w->entries = std::max(w->entries, e.entries);
}

void Schedule::Handle(const WorkerLost& e) {
  Worker* const w = Find(e.worker, e.incarnation);
  if (w == nullptr) return;
  if (w->phase == Phase::kReady) ++workers_lost_;
  w->phase = Phase::kAway;
  w->loading = false;
  const std::set<int64_t> running = std::move(w->running);
  w->running.clear();
  for (const int64_t step : running) {
    const auto it = steps_.find(step);
    if (++it->second.lost >= options_.max_attempts && !error_) {
      Fail(Internal("step " + std::to_string(step) + ": expected to lose fewer than " +
                    std::to_string(options_.max_attempts) +
                    " workers while they run it, got: " + std::to_string(it->second.lost)));
    }
    PutBack(it);
  }
}

void Schedule::Handle(const EntryRefused& e) {
  if (Find(e.worker, e.incarnation) == nullptr) return;
  Fail(e.error);
  Handle(WorkerLost{e.worker, e.incarnation});  // set up anew when it is tried again
}

void Schedule::Handle(const StepDone& e) {
  const auto it = Take(e.worker, e.incarnation, e.step);
  if (it == steps_.end()) return;
  steps_.erase(it);
  ++workers_[e.worker].done;
  actions_.push_back({.kind = Kind::kFinish, .step = e.step});
}

void Schedule::Handle(const StepFailed& e) {
  const auto it = Take(e.worker, e.incarnation, e.step);
  if (it != steps_.end()) FailWith(it, e.error);
}

void Schedule::Handle(const StepReturned& e) {
  const auto it = Take(e.worker, e.incarnation, e.step);
  if (it == steps_.end()) return;
  const int returned = ++it->second.returned;
  if (e.error.code() == StatusCode::kResourceExhausted || returned >= options_.max_attempts) {
    return FailWith(
        it, e.error.At("step " + std::to_string(e.step) + ": attempt " + std::to_string(returned)));
  }
  it->second.keeper = e.worker;
  it->second.keeper_incarnation = e.incarnation;
  PutBack(it);
}

}  // namespace meshtrain::parameter
