// Asks the job's leader how far it is, GET /progress over loopback, from a thread of its own: an
// answer may take its time, and the runner has none to give.
#pragma once

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "operator/reconcile/observed.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

// Thread-safe.
class LoopbackPuller {
 public:
  // `period`: between two questions.
  explicit LoopbackPuller(Duration period);
  // Begins to ask; once. Errors: kUnavailable (no thread).
  Status Start();
  ~LoopbackPuller();
  LoopbackPuller(const LoopbackPuller&) = delete;
  LoopbackPuller& operator=(const LoopbackPuller&) = delete;

  // Whom to ask from now on: "HOST:PORT", the first that answers; none: nobody. An answer to an
  // earlier list is dropped.
  void Ask(std::vector<std::string> addresses);
  // The newest answer that was not taken yet.
  std::optional<reconcile::ProgressSeen> Take();
  // Readable when there is one.
  int fd() const { return event_; }

 private:
  void Work(std::stop_token stop);

  const Duration period_;
  int event_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> addresses_ MT_GUARDED_BY(mutex_);
  int64_t version_ MT_GUARDED_BY(mutex_) = 0;  // of addresses_
  std::optional<reconcile::ProgressSeen> answer_ MT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace meshtrain::local
