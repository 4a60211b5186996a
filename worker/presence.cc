#include "worker/presence.h"

#include "runtime/trainer/job/choices.h"

namespace meshtrain::worker {

Presence::Presence(const telemetry::ReplicaLabels& labels)
    : metrics_(labels),
      ready_gauge_(
          metrics_.AddGauge("meshtrain_ready", "1 once the process does its work, else 0.")) {}

Result<std::unique_ptr<Presence>> Presence::Create(const trainer::JobConfig& config,
                                                   const std::string& job,
                                                   std::function<bool()> healthy) {
  const cluster::TaskId task =
      config.job.tf_config ? config.job.tf_config->task : cluster::TaskId{};
  auto presence = std::unique_ptr<Presence>(
      new Presence({.training_job = job,
                    .replica_type = std::string(cluster::RoleName(task.role)),
                    .replica_index = task.index}));
  if (!config.port) return presence;
  Presence* p = presence.get();
  MT_ASSIGN_OR_RETURN(
      presence->endpoints_,
      telemetry::Endpoints::Start(
          {.host = config.host, .port = *config.port, .names = trainer::OwnHostNames(config)},
          {.metrics = [p] { return p->metrics_.Text(); },
           .progress = [p] { return telemetry::ProgressJson(p->board_.Get()); },
           .healthy = std::move(healthy),
           .ready = [p] { return p->ready_.load(); },
           .page = {},
           .run = {}}));
  return presence;
}

void Presence::Ready() {
  ready_ = true;
  ready_gauge_.Set(1);
}

}  // namespace meshtrain::worker
