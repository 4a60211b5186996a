// The queue between "something about this job changed" and the threads that look at it. client-go's
// guarantees and constants: a key waits at most once however often it is added; one thread at a
// time works on a key; a key added while it is worked on comes again after; order is first come,
// first served, so that a busy job never starves a quiet one. A key that fails waits 5 ms, 10 ms,
// ... 1000 s, and all failures together at most 10 a second after a burst of 100.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// What a metrics endpoint wants to know. Called without locks held.
struct QueueObserver {
  std::function<void()> added, retried;
  std::function<void(Duration waited)> taken;
  std::function<void(Duration worked)> done;
};

// Thread-safe.
class WorkQueue {
 public:
  explicit WorkQueue(Clock& clock, QueueObserver observer = {});

  void Add(const std::string& key);
  // Not before `delay` has passed; of several the earliest counts. Zero or less: now.
  void AddAfter(const std::string& key, Duration delay);
  // After a failure, with the back-off above (at most `longest`).
  void AddRateLimited(const std::string& key, Duration longest = std::chrono::seconds(1000));
  // After a success: its back-off starts anew.
  void Forget(const std::string& key);

  // Waits for a key; nothing when `stop` was requested. Each key taken is followed by one Done.
  std::optional<std::string> Take(std::stop_token stop);
  void Done(const std::string& key);

  // For metrics and tests.
  int64_t depth() const;        // ready and not taken
  int64_t delayed() const;      // waiting for their time
  Duration unfinished() const;  // time that keys being worked on have taken so far, summed
  Duration longest_running() const;
  Duration longest_waiting() const;  // ready and not taken
  bool idle() const;                 // nothing ready, nothing worked on

 private:
  void AddLocked(const std::string& key) MT_REQUIRES(mutex_);
  // Moves what is due to the queue; returns how long until the next one is.
  Duration Promote(int64_t& promoted) MT_REQUIRES(mutex_);

  Clock& clock_;
  const QueueObserver observer_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> ready_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Duration> dirty_
      MT_GUARDED_BY(mutex_);  // key -> when it was added
  std::unordered_map<std::string, Duration> working_
      MT_GUARDED_BY(mutex_);  // key -> when it was taken
  std::unordered_map<std::string, Duration> due_ MT_GUARDED_BY(mutex_);
  std::set<std::pair<Duration, std::string>> by_time_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, int> failures_ MT_GUARDED_BY(mutex_);
  double tokens_ MT_GUARDED_BY(mutex_) = 100;
  Duration tokens_at_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
