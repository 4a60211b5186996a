// Carries out an Outcome on the cluster, by the rules at the head of
// operator/reconcile/reconcile.h: phases in order, the calls of one phase in parallel, the first
// error ends it. The answers go into the store, so that the next look at the job already knows
// them.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "operator/api/training_job.h"
#include "operator/control/fan_out.h"
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
  // A status write got no good answer (a conflict, an error, silence): the job must be read anew
  // before it is decided on again, since the write may have happened (reconcile.h, rule 2).
  bool read_job_anew = false;
  // Something that was to be made was there already, and ours: the store did not know of it, and
  // perhaps still does not.
  bool found = false;
  // A child that pods mount was found missing; `status` then says the same.
  std::optional<reconcile::LostChild> lost_child;
};

// Thread-safe.
class Applier {
 public:
  // After each status that was written: before and after.
  using OnStatus = std::function<void(const api::TrainingJob& job, const api::JobStatus& before,
                                      const api::JobStatus& after)>;
  Applier(kube::Client& client, kube::EventRecorder& events, Store& store, FanOut& fan_out,
          Clock& clock, OnStatus on_status = {});

  // `stop` ends it with kCancelled; calls under way are finished.
  Applied Apply(const api::TrainingJob& job, const reconcile::Outcome& outcome,
                const reconcile::Settings& settings, std::stop_token stop);

 private:
  struct Run;

  kube::Client& client_;
  kube::EventRecorder& events_;
  Store& store_;
  FanOut& fan_out_;
  Clock& clock_;
  const OnStatus on_status_;
};

}  // namespace meshtrain::control
