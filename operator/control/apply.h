// Carries out an Outcome on the cluster, by the rules at the head of
// operator/reconcile/reconcile.h: phases in order, the calls of one phase in parallel, the first
// error ends it. The answers go into the store, so that the next look at the job already knows
// them. No write is repeated while the world stands still (repeat_guard.h). Each one that is sent
// is a line in the log: job, what, why.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "operator/api/training_job.h"
#include "operator/control/fan_out.h"
#include "operator/control/repeat_guard.h"
#include "operator/control/store.h"
#include "operator/kube/client.h"
#include "operator/kube/events.h"
#include "operator/reconcile/reconcile.h"

namespace meshtrain::control {

kube::Resource TrainingJobs();
// The kind of pod groups of a gang scheduler; nothing for kNone.
std::optional<kube::Resource> PodGroups(reconcile::GangScheduler gang);

struct Applied {
  Status status;
  // Set where the API server refused a write for good; `status` then says the same.
  std::optional<reconcile::RefusedWrite> refused;
  // A write of the status or a deletion of the job got no good answer (a conflict, an error,
  // silence): the job must be read anew before it is decided on again, since the write may have
  // happened (reconcile.h, rules 2 and 4).
  bool read_job_anew = false;
  // A child that pods mount was found missing; `status` then says the same.
  std::optional<reconcile::LostChild> lost_child;
  bool told = false;  // a status was written
  // A write was left out, or was refused, and may be sent (again) then.
  std::optional<Duration> look_again_in;
};

// Thread-safe.
class Applier {
 public:
  // Called from the threads that apply; must not block.
  struct Observer {
    // After each status that was written: before and after.
    std::function<void(const api::TrainingJob& job, const api::JobStatus& before,
                       const api::JobStatus& after)>
        on_status;
    // After each write that came to an end, whatever came of it.
    std::function<void()> on_answer;
  };
  Applier(kube::Client& client, kube::EventRecorder& events, Store& store, FanOut& fan_out,
          Clock& clock, Observer observer = {});

  // `change`: JobView::change of the view that `outcome` was decided on. `stop` ends it with
  // kCancelled; calls under way are finished.
  Applied Apply(const api::TrainingJob& job, const reconcile::Outcome& outcome,
                const reconcile::Settings& settings, int64_t change, std::stop_token stop);
  // The job is gone: what was written for it is of no more interest.
  void Forget(const std::string& key) { guard_.Forget(key); }

 private:
  struct Run;

  kube::Client& client_;
  kube::EventRecorder& events_;
  Store& store_;
  FanOut& fan_out_;
  Clock& clock_;
  const Observer observer_;
  RepeatGuard guard_;
};

}  // namespace meshtrain::control
