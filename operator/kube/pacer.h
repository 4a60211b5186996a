// How fast we may speak: as fast as the server takes it. There is no fixed rate; a 429 or 503 with
// Retry-After closes the gate for that long and halves how many requests may be under way,
// successes open it again one by one (additive increase, multiplicative decrease, as TCP does), so
// a busy API server is neither flooded nor left idle.
#pragma once

#include <stop_token>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::kube {

// Thread-safe.
class Pacer {
 public:
  Pacer(Clock& clock, int most_in_flight);

  // Waits for the gate and a place. Errors: kDeadlineExceeded after `timeout`, kCancelled on stop.
  // Each success is followed by exactly one Leave.
  Status Enter(std::stop_token stop, Duration timeout);

  // `throttled`: the server answered 429, or 503 with Retry-After.
  void Leave(bool throttled, Duration retry_after);

  int limit() const;

 private:
  Clock& clock_;
  const int most_;
  mutable Mutex mutex_;
  CondVar changed_;
  int in_flight_ MT_GUARDED_BY(mutex_) = 0;
  int limit_ MT_GUARDED_BY(mutex_);
  int successes_ MT_GUARDED_BY(mutex_) = 0;  // since the limit last changed
  Duration open_at_ MT_GUARDED_BY(mutex_) = Duration::min();
};

}  // namespace meshtrain::kube
