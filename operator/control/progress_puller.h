// Asks the leader of each running job how far it is (runtime/telemetry/progress_fetch.h), at most
// once per 5 s and job. A pod that does not answer is asked less and less often (up to once a
// minute). The answers are kept for the controller; what changes wakes the job.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "operator/control/store.h"
#include "operator/control/work_queue.h"
#include "operator/reconcile/observed.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// The body of one answer, or why there is none.
using FetchProgress =
    std::function<Result<std::string>(const ProgressTarget& target, std::stop_token stop)>;
Result<std::string> FetchProgressOverHttp(const ProgressTarget& target, std::stop_token stop);

using ParseProgress =
    std::function<std::optional<reconcile::ProgressSeen>(std::string_view text, TimePoint now)>;

// Thread-safe.
class ProgressPuller {
 public:
  ProgressPuller(const Store& store, Clock& clock, FetchProgress fetch, ParseProgress parse,
                 std::function<void(const std::string& key)> wake,
                 Duration period = std::chrono::seconds(5));

  // Starts asking (it may have been started before). Call it whenever a job is looked at.
  void Follow(const std::string& key);
  void Forget(const std::string& key);

  std::optional<reconcile::ProgressSeen> Last(const std::string& key) const;

  // Works until stop; several threads may.
  void Run(std::stop_token stop);

 private:
  struct Followed {
    std::string pod_uid;
    int failures = 0;
    std::string text;  // of the last answer
    std::optional<reconcile::ProgressSeen> last;
  };
  const Store& store_;
  Clock& clock_;
  const FetchProgress fetch_;
  const ParseProgress parse_;
  const std::function<void(const std::string& key)> wake_;
  const Duration period_;  // failures stretch it up to 12 times
  WorkQueue queue_;
  mutable Mutex mutex_;
  std::map<std::string, Followed> followed_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
