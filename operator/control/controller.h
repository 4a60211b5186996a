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
  std::string ns;    // "" = all namespaces
  int threads = 4;   // looks at jobs at once
  int helpers = 12;  // further calls at once, shared by all jobs
  int pullers = 4;   // threads that ask for progress; 0 = never ask
  bool watch_nodes = true;
  reconcile::Settings settings;
  FetchProgress fetch_progress = FetchProgressOverHttp;
  // Called when a second has passed without a look, once after each time there were some: the
  // moment to give back what they needed.
  std::function<void()> on_rest;
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

  // Whether all first lists are in. Any thread.
  bool synced() const;
  // Nothing waits and nothing is being looked at (timers may). For tests.
  bool idle() const;
  const Store& store() const { return store_; }

 private:
  void Work(std::stop_token stop);
  void Rest(std::stop_token stop);
  // One look. Returns what went wrong, if anything.
  Status ReadAnew(const std::string& key, std::stop_token stop);
  Status LookAt(const std::string& key, std::stop_token stop);

  kube::Client& client_;
  Clock& clock_;
  Metrics& metrics_;
  const ControllerOptions options_;
  WorkQueue queue_;
  Store store_;
  std::atomic<int64_t> looks_ = 0;
  FanOut fan_out_;
  Applier applier_;
  ProgressPuller puller_;
  std::vector<std::unique_ptr<Informer>> informers_;
  mutable Mutex mutex_;
  std::map<std::string, reconcile::RefusedWrite> refused_ MT_GUARDED_BY(mutex_);
  std::map<std::string, reconcile::LostChild> lost_ MT_GUARDED_BY(mutex_);
  std::set<std::string> read_anew_
      MT_GUARDED_BY(mutex_);  // jobs whose last status write may or may not have happened
};

}  // namespace meshtrain::control
