// What a server or a worker knows of its chief: when it heard from it, and whether it left.
// Thread-safe.
//
// A chief says that it leaves with an EndRequest (messages.h) to these methods instead of End: the
// job is not done, and another chief will come.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::parameter {

inline constexpr char kServerLeave[] = "/meshtrain.v1.ParameterServer/Leave";
inline constexpr char kWorkerLeave[] = "/meshtrain.v1.ParameterWorker/Leave";

struct ChiefSeen {
  std::optional<Duration>
      heard;          // when it last called, by Clock::Monotonic; nothing: no chief came yet
  bool left = false;  // it said so, and no other has begun since
  std::vector<std::string> lost;  // whom it missed when it last called: "worker-3"
};

class ChiefWatch {
 public:
  // A chief begins a term.
  void Began() { Set(/*left=*/false); }
  // It called, whatever it is answered.
  void Called() {
    MutexLock lock(mutex_);
    seen_.heard = SystemClock().Monotonic();
  }
  void Heard(std::vector<std::string> lost) {
    MutexLock lock(mutex_);
    seen_.heard = SystemClock().Monotonic();
    seen_.lost = std::move(lost);
  }
  void Left() { Set(/*left=*/true); }
  ChiefSeen seen() const {
    MutexLock lock(mutex_);
    return seen_;
  }

 private:
  void Set(bool left) {
    MutexLock lock(mutex_);
    seen_ = {SystemClock().Monotonic(), left, {}};
  }

  mutable Mutex mutex_;
  ChiefSeen seen_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::parameter
