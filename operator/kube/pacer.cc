#include "operator/kube/pacer.h"

#include <algorithm>

namespace meshtrain::kube {

Pacer::Pacer(Clock& clock, int most_in_flight)
    : clock_(clock), most_(std::max(1, most_in_flight)), limit_(most_) {}

Status Pacer::Enter(std::stop_token stop, Duration timeout) {
  const Duration deadline = clock_.Monotonic() + timeout;
  while (true) {
    Duration closed_for{};
    {
      MutexLock lock(mutex_);
      const Duration now = clock_.Monotonic();
      if (now >= deadline) {
        return DeadlineExceeded("API server: expected a turn in time, got: none")
            .From(Origin::kApiServer);
      }
      if (now < open_at_) {
        closed_for = std::min(open_at_, deadline) - now;
      } else if (in_flight_ < limit_) {
        ++in_flight_;
        return OkStatus();
      } else {
        changed_.WaitFor(mutex_, stop, std::min<Duration>(deadline - now, std::chrono::seconds(1)),
                         [&]() MT_REQUIRES(mutex_) { return in_flight_ < limit_; });
      }
    }
    if (closed_for > Duration::zero()) clock_.SleepFor(closed_for, stop);
    if (stop.stop_requested()) {
      return Cancelled("API server: stopped while waiting for a turn").From(Origin::kStop);
    }
  }
}

void Pacer::Leave(bool throttled, Duration retry_after) {
  MutexLock lock(mutex_);
  --in_flight_;
  const Duration now = clock_.Monotonic();
  if (throttled) {
    // Answers to requests that were already under way when the gate closed tell nothing new.
    if (now >= open_at_) {
      limit_ = std::max(1, limit_ / 2);
      successes_ = 0;
    }
    open_at_ = std::max(open_at_, now + retry_after);
  } else if (limit_ < most_ && ++successes_ >= limit_) {
    ++limit_;
    successes_ = 0;
  }
  changed_.NotifyAll();
}

int Pacer::limit() const {
  MutexLock lock(mutex_);
  return limit_;
}

}  // namespace meshtrain::kube
