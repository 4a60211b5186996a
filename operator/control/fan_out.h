// Runs a batch of calls in parallel on a few shared threads, and stops at the first error. Several
// batches take turns, one call each, so that 500 creations of one job do not stand before the three
// of another. The caller's own thread works too: a batch of one costs no hand-over, and every batch
// goes on even when all helpers are busy.
#pragma once

#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::control {

// Thread-safe.
class FanOut {
 public:
  explicit FanOut(int helpers);
  ~FanOut();

  // Returns when no call of this batch is running any more: the first error in time, or OK when all
  // were made.
  Status Run(const std::vector<std::function<Status()>>& calls);

 private:
  struct Batch {
    const std::vector<std::function<Status()>>* calls;
    size_t next = 0;
    int running = 0;
    Status first_error;
    bool open() const { return next < calls->size() && first_error.ok(); }
  };
  // Makes one call of `batch`; the lock is held before and after, not during.
  void RunOne(Batch& batch) MT_REQUIRES(mutex_);
  void Help(std::stop_token stop);

  Mutex mutex_;
  CondVar work_, finished_;
  std::list<Batch*> batches_
      MT_GUARDED_BY(mutex_);  // those with calls left; the next in turn first
  std::vector<std::jthread> helpers_;
};

}  // namespace meshtrain::control
