#include "operator/control/work_queue.h"

#include <algorithm>
#include <cmath>

namespace meshtrain::control {
namespace {
constexpr Duration kBase = std::chrono::milliseconds(5);
constexpr double kBurst = 100;
constexpr double kPerSecond = 10;
}  // namespace

WorkQueue::WorkQueue(Clock& clock, QueueObserver observer)
    : clock_(clock), observer_(std::move(observer)), tokens_at_(clock.Monotonic()) {}

void WorkQueue::AddLocked(const std::string& key) {
  if (!dirty_.try_emplace(key, clock_.Monotonic()).second) return;
  if (working_.contains(key)) return;  // Done puts it into the queue
  ready_.push_back(key);
  changed_.NotifyOne();
}

void WorkQueue::Add(const std::string& key) {
  {
    MutexLock lock(mutex_);
    AddLocked(key);
  }
  if (observer_.added) observer_.added();
}

void WorkQueue::AddAfter(const std::string& key, Duration delay) {
  if (delay <= Duration::zero()) return Add(key);
  MutexLock lock(mutex_);
  const Duration due = clock_.Monotonic() + delay;
  const auto it = due_.find(key);
  if (it != due_.end()) {
    if (it->second <= due) return;
    by_time_.erase({it->second, key});
  }
  due_[key] = due;
  by_time_.insert({due, key});
  changed_.NotifyOne();  // the next one due may be sooner now
}

void WorkQueue::AddRateLimited(const std::string& key, Duration longest) {
  Duration delay{};
  {
    MutexLock lock(mutex_);
    const int failures = failures_[key]++;
    delay =
        failures >= 30 ? longest : std::min<Duration>(longest, kBase * (int64_t{1} << failures));
    // One bucket for all keys; it may go into debt, which later failures wait off.
    const Duration now = clock_.Monotonic();
    tokens_ = std::min(
        kBurst, tokens_ + std::chrono::duration<double>(now - tokens_at_).count() * kPerSecond);
    tokens_at_ = now;
    tokens_ -= 1;
    if (tokens_ < 0) {
      delay = std::max(delay, std::chrono::duration_cast<Duration>(
                                  std::chrono::duration<double>(-tokens_ / kPerSecond)));
    }
  }
  if (observer_.retried) observer_.retried();
  AddAfter(key, delay);
}

void WorkQueue::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  failures_.erase(key);
}

Duration WorkQueue::Promote(int64_t& promoted) {
  const Duration now = clock_.Monotonic();
  while (!by_time_.empty()) {
    const auto& [due, key] = *by_time_.begin();
    if (due > now) return due - now;
    const std::string copy = key;
    by_time_.erase(by_time_.begin());
    due_.erase(copy);
    AddLocked(copy);
    ++promoted;
  }
  return std::chrono::hours(1);
}

std::optional<std::string> WorkQueue::Take(std::stop_token stop) {
  while (!stop.stop_requested()) {
    int64_t promoted = 0;
    std::optional<std::string> taken;
    Duration waited{};
    {
      MutexLock lock(mutex_);
      const Duration next = Promote(promoted);
      if (!ready_.empty()) {
        taken = std::move(ready_.front());
        ready_.pop_front();
        const auto it = dirty_.find(*taken);
        waited = clock_.Monotonic() - it->second;
        dirty_.erase(it);
        working_[*taken] = clock_.Monotonic();
      } else {
        const size_t timers = by_time_.size();
        const Duration first = timers == 0 ? Duration::max() : by_time_.begin()->first;
        changed_.WaitFor(mutex_, stop, next, [&]() MT_REQUIRES(mutex_) {
          return !ready_.empty() || (!by_time_.empty() && by_time_.begin()->first < first);
        });
      }
    }
    for (; promoted > 0 && observer_.added; --promoted) observer_.added();
    if (taken) {
      if (observer_.taken) observer_.taken(waited);
      return taken;
    }
  }
  return std::nullopt;
}

void WorkQueue::Done(const std::string& key) {
  Duration worked{};
  {
    MutexLock lock(mutex_);
    const auto it = working_.find(key);
    if (it == working_.end()) return;
    worked = clock_.Monotonic() - it->second;
    working_.erase(it);
    if (dirty_.contains(key)) {
      ready_.push_back(key);
      changed_.NotifyOne();
    }
  }
  if (observer_.done) observer_.done(worked);
}

int64_t WorkQueue::depth() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(ready_.size());
}

int64_t WorkQueue::delayed() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(by_time_.size());
}

Duration WorkQueue::unfinished() const {
  MutexLock lock(mutex_);
  Duration sum{};
  for (const auto& [key, since] : working_) sum += clock_.Monotonic() - since;
  return sum;
}

Duration WorkQueue::longest_running() const {
  MutexLock lock(mutex_);
  Duration longest{};
  for (const auto& [key, since] : working_) longest = std::max(longest, clock_.Monotonic() - since);
  return longest;
}

Duration WorkQueue::longest_waiting() const {
  MutexLock lock(mutex_);
  Duration longest{};
  for (const std::string& key : ready_) {
    longest = std::max(longest, clock_.Monotonic() - dirty_.at(key));
  }
  return longest;
}

bool WorkQueue::idle() const {
  MutexLock lock(mutex_);
  return ready_.empty() && working_.empty();
}

}  // namespace meshtrain::control
