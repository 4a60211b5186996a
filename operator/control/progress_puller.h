// Asks the leader of each running job how far it is (runtime/telemetry/progress_fetch.h), at most
// once per 5 s and job. What each tells becomes a write to the API server, so those that answer
// take turns, kTurn apart: a thousand jobs are asked every 15 s, evenly. A pod that does not answer
// is asked less and less often (up to once a minute). The answers are kept for the controller; what
// changes wakes the job.
//
// At most kMostAsked jobs are asked at once, and of those that did not answer the last time at most
// kMostSilent, so that a thousand jobs behind a network that drops everything do not keep one that
// answers waiting: it finds a place whenever its time has come.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operator/control/store.h"
#include "operator/reconcile/observed.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// What leaders are asked over. One thread asks and waits.
class ProgressNetwork {
 public:
  struct Answer {
    int64_t id = 0;
    Result<std::string> body;  // or why there is none
  };
  virtual ~ProgressNetwork() = default;
  // Begins to ask; does not wait. Each ends after seconds, well or not.
  virtual void Ask(int64_t id, const ProgressTarget& target) = 0;
  // Waits until one has ended, `most` has passed, Interrupt was called or stop.
  virtual std::vector<Answer> Wait(Duration most, std::stop_token stop) = 0;
  // Ends a Wait. Any thread.
  virtual void Interrupt() = 0;
};
std::unique_ptr<ProgressNetwork> NewHttpProgressNetwork();

using ParseProgress =
    std::function<std::optional<reconcile::ProgressSeen>(std::string_view text, TimePoint now)>;

// Thread-safe.
class ProgressPuller {
 public:
  static constexpr int kMostAsked = 256;
  static constexpr int kMostSilent = 192;
  static constexpr Duration kTurn = std::chrono::milliseconds(15);

  ProgressPuller(const Store& store, Clock& clock, std::unique_ptr<ProgressNetwork> network,
                 ParseProgress parse, std::function<void(const std::string& key)> wake,
                 Duration period = std::chrono::seconds(5));

  // Starts asking (it may have been started before). Call it whenever a job is looked at.
  void Follow(const std::string& key);
  void Forget(const std::string& key);

  std::optional<reconcile::ProgressSeen> Last(const std::string& key) const;

  // Works until stop, on one thread.
  void Run(std::stop_token stop);

 private:
  struct Followed {
    std::string pod_uid;
    int failures = 0;
    Duration due{};
    bool asked = false;  // under way
    std::string text;    // of the last answer
    std::optional<reconcile::ProgressSeen> last;
  };
  struct Question {
    std::string key;
    ProgressTarget target;
    bool silent = false;  // it did not answer the last time
  };
  using Queue = std::set<std::pair<Duration, std::string>>;  // by when they are due

  Queue& QueueOf(const Followed& followed) MT_REQUIRES(mutex_) {
    return followed.failures == 0 ? answering_ : silent_;
  }
  void Enqueue(const std::string& key, Followed& followed, Duration due) MT_REQUIRES(mutex_);
  // Takes what is due and finds a place; tells when the next one may be.
  std::vector<Question> TakeDue(Duration& wait);
  void Take(const Question& question, const Result<std::string>& text);

  const Store& store_;
  Clock& clock_;
  const std::unique_ptr<ProgressNetwork> network_;
  const ParseProgress parse_;
  const std::function<void(const std::string& key)> wake_;
  const Duration period_;  // failures stretch it up to 12 times
  // Of the thread that runs.
  std::map<int64_t, Question> under_way_;
  int64_t questions_ = 0;
  int silent_under_way_ = 0;
  mutable Mutex mutex_;
  std::map<std::string, Followed> followed_ MT_GUARDED_BY(mutex_);
  Queue answering_ MT_GUARDED_BY(mutex_), silent_ MT_GUARDED_BY(mutex_);
  Duration last_turn_ MT_GUARDED_BY(mutex_){};
};

}  // namespace meshtrain::control
