// What OnLost said, for a test that waits for it. May go before the membership does.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/membership/membership.h"

namespace meshtrain::membership {

class Alarms {
 public:
  void Listen(Membership& membership) {
    membership.OnLost([said = said_](const Status& status) {
      MutexLock lock(said->mutex);
      said->heard.push_back(status);
      said->changed.NotifyAll();
    });
  }
  // The alarms, once there are `count`; fewer when time is up.
  std::vector<Status> WaitFor(size_t count, Duration patience) {
    MutexLock lock(said_->mutex);
    said_->changed.WaitFor(said_->mutex, {}, patience,
                           [&] { return said_->heard.size() >= count; });
    return said_->heard;
  }
  // OK where there is none when time is up.
  Status First(Duration patience) {
    const std::vector<Status> heard = WaitFor(1, patience);
    return heard.empty() ? OkStatus() : heard.front();
  }

 private:
  struct Said {
    Mutex mutex;
    CondVar changed;
    std::vector<Status> heard MT_GUARDED_BY(mutex);
  };
  std::shared_ptr<Said> said_ = std::make_shared<Said>();
};

}  // namespace meshtrain::membership
