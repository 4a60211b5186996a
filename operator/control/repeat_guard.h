// Keeps a write from being asked for again while nothing has changed. Between two changes of a
// job's world each write is sent once; and however often that world changes, not again within a
// second of the last time. A write that was refused goes again after 1 s, 2 s, 4 s, ... 60 s too,
// since who lifts a refusal (a quota, an admission) is on no watch of ours.
//
// One look finds a pod whose finalizers keep it, and asks for its deletion; the next look finds it
// as it was:
//   Before("ml/a", "delete pod a-0 uid-1 now", change 7) -> nothing: send it
//   Answered(..., OK)
//   Before(the same, change 7) -> OK: it is done as far as we can do it
//   Before(the same, change 8) -> nothing, once a second has passed
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace meshtrain::control {

// Thread-safe.
class RepeatGuard {
 public:
  explicit RepeatGuard(Clock& clock) : clock_(clock) {}

  struct Last {
    Status status;  // what came of it
    std::optional<Duration>
        may_in;  // how long until it may be sent; nothing: when the world changes
  };
  // What came of the same write before, where it must not be sent now; nothing: it may be sent.
  // `change`: JobView::change of the view that it was decided on.
  std::optional<Last> Before(const std::string& job, const std::string& write,
                             int64_t change) const;
  // It was sent and answered. A write of which nobody knows whether it arrived is not told here.
  void Answered(const std::string& job, const std::string& write, int64_t change,
                const Status& status);
  // The job is gone.
  void Forget(const std::string& job);

 private:
  struct Sent {
    int64_t change = 0;
    Duration at{};
    int refusals = 0;  // in a row
    Status status;
  };
  struct OfJob {
    std::map<std::string, Sent> writes;
    size_t look_over_at = 64;  // entries; the next time that old ones are looked for
  };
  Clock& clock_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, OfJob> sent_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
