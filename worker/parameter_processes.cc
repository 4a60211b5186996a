#include "worker/parameter_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/file.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/server/server.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/server_metrics.h"
#include "runtime/trainer/job/stop_times.h"
#include "runtime/trainer/job/worker_server.h"
#include "worker/chief_news.h"
#include "worker/presence.h"

namespace meshtrain::worker {

namespace {

// Counts what a total has grown by.
class Grown {
 public:
  explicit Grown(telemetry::Counter counter) : counter_(counter) {}
  void Set(int64_t total) {
    counter_.Add(static_cast<double>(std::max<int64_t>(0, total - seen_)));
    seen_ = total;
  }

 private:
  telemetry::Counter counter_;
  int64_t seen_ = 0;
};

}  // namespace

Status RunParameterServer(const trainer::JobConfig& config, const manifest::Manifest& manifest,
                          std::stop_token stop) {
  const cluster::TfConfig& tf_config = *config.job.tf_config;
  MT_ASSIGN_OR_RETURN(const cluster::StopTimes times,
                      trainer::StopTimesIn(trainer::ProcessEnvironment()));
  parameter::ServerOptions options;
  MT_ASSIGN_OR_RETURN(options.port, cluster::ListenPort(tf_config));
  options.address = cluster::ListenAddress(tf_config);
  MT_ASSIGN_OR_RETURN(options.identity, parameter::IdentityOf(trainer::ProcessEnvironment()));
  MT_ASSIGN_OR_RETURN(const std::string folder, trainer::SharedFolder(config, manifest));
  options.store.folder = folder + "/parameter_servers/" + cluster::ToString(tf_config.task);
  options.store.threads = std::max(1, config.threads);
  options.store.memory = config.memory;
  MT_ASSIGN_OR_RETURN(const auto server, parameter::ParameterServer::Serve(options));
  const parameter::ParameterServer& s = *server;
  MT_ASSIGN_OR_RETURN(const auto presence, Presence::Create(config, trainer::JobName(manifest),
                                                            [&s] { return s.health().ok(); }));
  trainer::Say(fmt::format("parameter server {} at port {}; log in {}", tf_config.task.index,
                           server->port(), options.store.folder));
  telemetry::Metrics& m = presence->metrics();
  Grown pushes(m.AddCounter("meshtrain_parameter_pushes_total", "Pushes that were applied."));
  Grown stale(m.AddCounter("meshtrain_parameter_stale_pushes_total",
                           "Pushes beyond the staleness bound, computed anew."));
  Grown not_finite(m.AddCounter("meshtrain_parameter_not_finite_pushes_total",
                                "Pushes of values that are not finite, refused."));
  Grown pulls(m.AddCounter("meshtrain_parameter_pulls_total", "Pulls that were answered."));
  Grown pushed(
      m.AddCounter("meshtrain_parameter_pushed_bytes_total", "Bytes of values that were pushed."));
  Grown pulled(m.AddCounter("meshtrain_parameter_pulled_bytes_total",
                            "Bytes of variables that were pulled."));
  telemetry::Gauge log =
      m.AddGauge("meshtrain_parameter_log_bytes", "Bytes of the push log on the disk.");
  Grown damaged(m.AddCounter(trainer::kDamagedFrames, trainer::kDamagedFramesHelp));
  presence->Ready();
  Serving serving(times.serve, stop);
  ChiefNews news(tf_config, config.job.peer_return);
  Status chief;
  while (!server->ended() && server->health().ok() && !serving.MayEnd(server->chief())) {
    serving.Pause();
    if (chief = news.Look(server->chief()); !chief.ok() && !stop.stop_requested()) break;
    const parameter::ServerStats stats = server->stats();
    pushes.Set(stats.pushes);
    stale.Set(stats.stale);
    not_finite.Set(stats.not_finite);
    pulls.Set(stats.pulls);
    pushed.Set(stats.pushed_bytes);
    pulled.Set(stats.pulled_bytes);
    damaged.Set(parameter::DamagedFrames());
    log.Set(static_cast<double>(stats.log_bytes));
  }
  MT_RETURN_IF_ERROR(server->health());
  if (server->ended()) return OkStatus();
  return stop.stop_requested() ? cluster::Stopped() : chief;
}

Status RunParameterWorker(const trainer::JobConfig& config, const manifest::Manifest& manifest,
                          std::stop_token stop) {
  MT_ASSIGN_OR_RETURN(const cluster::StopTimes times,
                      trainer::StopTimesIn(trainer::ProcessEnvironment()));
  MT_ASSIGN_OR_RETURN(const auto server, trainer::ServeWorker(config, manifest));
  MT_ASSIGN_OR_RETURN(const auto presence, Presence::Create(config, trainer::JobName(manifest)));
  trainer::Say(fmt::format("worker {} at port {}, for the chief's steps",
                           config.job.tf_config->task.index, server->port()));
  Grown damaged(
      presence->metrics().AddCounter(trainer::kDamagedFrames, trainer::kDamagedFramesHelp));
  presence->Ready();
  Serving serving(times.serve, stop);
  ChiefNews news(*config.job.tf_config, config.job.peer_return);
  Status chief;
  while (!server->ended() && !serving.MayEnd(server->chief())) {
    serving.Pause();
    if (chief = news.Look(server->chief()); !chief.ok() && !stop.stop_requested()) break;
    damaged.Set(parameter::DamagedFrames());
  }
  if (server->ended()) return OkStatus();
  return stop.stop_requested() ? cluster::Stopped() : chief;
}

}  // namespace meshtrain::worker
