// The loop: informers fill the store, changes put a job's name on the queue, a thread takes it,
// asks Reconcile what to do and applies that. Why a job woke is forgotten on purpose: every look
// starts from the whole of what is known.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/control/apply.h"
#include "operator/control/fan_out.h"
#include "operator/control/informer.h"
#include "operator/control/metrics.h"
#include "operator/control/progress_puller.h"
#include "operator/control/store.h"
#include "operator/control/work_queue.h"
#include "operator/kube/client.h"
#include "operator/kube/events.h"
#include "operator/reconcile/observed.h"

namespace meshtrain::control {

struct ControllerOptions {
  std::set<std::string> namespaces;  // whose jobs; empty: of all
  int threads = 4;                   // looks at jobs at once
  int helpers = 12;                  // further calls at once, shared by all jobs
  bool pull_progress = true;
  bool watch_nodes = true;
  reconcile::Settings settings;
  // Called when a second has passed without a look, once after each time there were some: the
  // moment to give back what they needed.
  std::function<void()> on_rest;
};

// When a controller rests. Counts looks and no time: whoever asks says what a while is.
class RestWatch {
 public:
  // Asked once in a while with the number of looks so far, and whether none is due. True: none came
  // since the last time, so it rests now; once after each time of work.
  bool RestsNow(int64_t looks, bool idle) {
    const bool still = looks == std::exchange(seen_, looks);
    if (!still || !idle || looks == rested_) return false;
    rested_ = looks;
    return true;
  }

 private:
  int64_t seen_ = 0, rested_ = 0;
};

class Controller {
 public:
  // Borrows everything.
  Controller(kube::Client& client, kube::EventRecorder& events, Clock& clock, Metrics& metrics,
             ControllerOptions options);
  ~Controller();

  // Until stop; what is being applied then ends with its present phase, so that nothing is written
  // after Run returned.
  void Run(std::stop_token stop);

  // Whether all first lists are in; else names those that are not. Any thread.
  Status Ready() const;
  // Whether every kind that is needed is as the server has it now, or had it a moment ago: false
  // after a server was away or set back, until all were checked. Any thread.
  bool sure() const;
  // Fails when there is work and none of it has moved on for kStands: no look has begun or ended
  // and no request was answered. Any thread.
  Status Healthy() const;
  static constexpr Duration kStands = std::chrono::minutes(3);
  // Nothing waits and nothing is being looked at (timers may). For tests.
  bool idle() const;
  const Store& store() const { return store_; }

 private:
  // The namespaces of watches: "" is all of them.
  std::vector<std::string> Watched() const;
  // Whether the lists are in by which jobs of a namespace are decided. A namespace that cannot be
  // read, as where somebody has deleted it, does not keep the others waiting.
  bool Synced(std::string_view ns) const;
  void Work(std::stop_token stop);
  void Moved() { moved_at_ = clock_.Monotonic().count(); }
  void Rest(std::stop_token stop);
  // What queue, applier and puller know of the job of that name: waits, writes, answers.
  void ForgetTries(const std::string& key);
  void Forget(const std::string& key);  // all of it
  // Fills in what earlier looks at the job left.
  void Recall(const std::string& key, const JobView& view, reconcile::Observed* seen);
  // One look. Returns what went wrong, if anything.
  Status ReadAnew(const std::string& key, std::stop_token stop);
  Status LookAt(const std::string& key, std::stop_token stop);
  // Asks the server for the nodes that the pods of `view` are on and the watch does not know, since
  // nothing in a pod's version tells whether its node is older. True where one is gone.
  bool FindMissingNodes(const std::string& key, const JobView& view, std::stop_token stop);

  kube::Client& client_;
  Clock& clock_;
  TimePoint began_{};  // Run
  Metrics& metrics_;
  const ControllerOptions options_;
  WorkQueue queue_;
  Store store_;
  std::atomic<int64_t> looks_ = 0;
  std::atomic<int64_t> moved_at_ = 0;  // Monotonic nanoseconds
  FanOut fan_out_;
  Applier applier_;
  ProgressPuller puller_;
  std::vector<std::unique_ptr<Informer>> informers_;
  mutable Mutex mutex_;
  struct Refusal {
    reconcile::RefusedWrite write;  // retry_at: where the world stays as it is
    TimePoint at;
    int64_t change = 0;  // JobView::change of the look that was refused
  };
  // Of looks before this one. Another job of the same name begins with nothing of it.
  struct Memory {
    std::string uid;  // the job's
    std::optional<Refusal> refused;
    std::optional<reconcile::LostChild> lost_child;
    std::optional<TimePoint> mounts_asked;
  };
  std::map<std::string, Memory> memory_ MT_GUARDED_BY(mutex_);
  // Jobs whose last status write may or may not have happened, and all after a list anew.
  std::set<std::string> read_anew_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
