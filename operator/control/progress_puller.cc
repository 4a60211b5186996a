#include "operator/control/progress_puller.h"

#include <algorithm>

#include "runtime/telemetry/progress_fetch.h"

namespace meshtrain::control {

Result<std::string> FetchProgressOverHttp(const ProgressTarget& target, std::stop_token stop) {
  return telemetry::FetchProgress(target.ip, target.port, std::move(stop));
}

ProgressPuller::ProgressPuller(const Store& store, Clock& clock, FetchProgress fetch,
                               ParseProgress parse,
                               std::function<void(const std::string& key)> wake, Duration period)
    : store_(store),
      clock_(clock),
      fetch_(std::move(fetch)),
      parse_(std::move(parse)),
      wake_(std::move(wake)),
      period_(period),
      queue_(clock) {}

void ProgressPuller::Follow(const std::string& key) {
  const auto target = store_.Leader(key);
  if (!target) return;
  {
    MutexLock lock(mutex_);
    if (!followed_.try_emplace(key).second) return;
  }
  queue_.AddAfter(key, period_);
}

void ProgressPuller::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  followed_.erase(key);
}

std::optional<reconcile::ProgressSeen> ProgressPuller::Last(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto it = followed_.find(key);
  return it == followed_.end() ? std::nullopt : it->second.last;
}

void ProgressPuller::Run(std::stop_token stop) {
  while (const auto key = queue_.Take(stop)) {
    const auto target = store_.Leader(*key);
    if (!target) {
      // Between two attempts, or over: the next look at the job with a leader follows it again.
      Forget(*key);
      queue_.Done(*key);
      // One that has come meanwhile was not followed, since the job still was.
      Follow(*key);
      continue;
    }
    const Result<std::string> text = fetch_(*target, stop);
    bool changed = false;
    Duration next = period_;
    {
      MutexLock lock(mutex_);
      const auto it = followed_.find(*key);
      if (it == followed_.end()) {
        queue_.Done(*key);
        continue;
      }
      Followed& followed = it->second;
      if (followed.pod_uid != target->pod_uid) followed = {.pod_uid = target->pod_uid};
      std::optional<reconcile::ProgressSeen> parsed;
      if (text.ok()) parsed = parse_(*text, clock_.Now());
      if (parsed) {
        followed.failures = 0;
        changed = *text != followed.text;
        followed.text = *text;
        followed.last = std::move(parsed);
      } else {
        ++followed.failures;
        next = std::min(period_ * 12, period_ * (1 << std::min(followed.failures, 4)));
      }
    }
    if (changed) wake_(*key);
    queue_.Done(*key);
    queue_.AddAfter(*key, next);
  }
}

}  // namespace meshtrain::control
