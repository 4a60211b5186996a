#include "worker/parameter_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/log.h"
#include "runtime/cluster/exit_code.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/server/server.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/server_metrics.h"
#include "runtime/trainer/job/stop_times.h"
#include "runtime/trainer/job/worker_server.h"
#include "worker/presence.h"

namespace meshtrain::worker {

namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);

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

// What a server or a worker makes of its chief, look by look: it says who is lost, and when there
// is nobody left to serve.
class ChiefNews {
 public:
  ChiefNews(const cluster::TfConfig& tf_config, Duration peer_return)
      : chief_(cluster::ToString({tf_config.cluster.hosts.contains(cluster::Role::kChief)
                                      ? cluster::Role::kChief
                                      : cluster::Role::kWorker,
                                  0})),
        self_(cluster::ToString(tf_config.task)),
        peer_return_(peer_return) {}

  // trainer::ChiefStays (stop_times.h).
  Status Look(parameter::ChiefSeen seen) {
    const Duration now = SystemClock().Monotonic();
    // Who stood still itself has heard nothing meanwhile.
    if (now - looked_ > kStoodStill) woke_ = now;
    looked_ = now;
    if (seen.heard) seen.heard = std::max(*seen.heard, woke_);
    const bool silent = seen.heard && !seen.left && now - *seen.heard >= cluster::kLostAfter;
    if (silent && !silent_) LogWarning("the chief is lost", {{"task", chief_}});
    if (!silent && silent_) LogInfo("the chief is back", {{"task", chief_}});
    silent_ = silent;
    std::set<std::string> lost(seen.lost.begin(), seen.lost.end());
    lost.erase(self_);
    for (const std::string& task : lost) {
      if (!lost_.contains(task)) LogWarning("lost, says the chief", {{"task", task}});
    }
    lost_ = std::move(lost);
    return trainer::ChiefStays(chief_, seen, began_, now, peer_return_);
  }

 private:
  static constexpr Duration kStoodStill = 10 * kLook;

  const std::string chief_, self_;
  const Duration peer_return_;
  const Duration began_ = SystemClock().Monotonic();
  Duration looked_ = began_;
  Duration woke_ = began_;
  bool silent_ = false;
  std::set<std::string> lost_;
};

// What is left of a server's or a worker's life once it was asked to stop (stop_times.h).
class Serving {
 public:
  // `serve`: for at most so long.
  Serving(Duration serve, std::stop_token stop) : serve_(serve), stop_(std::move(stop)) {}
  bool MayEnd(const parameter::ChiefSeen& chief) {
    if (!stop_.stop_requested()) return false;
    const Duration now = SystemClock().Monotonic();
    const bool first = !asked_;
    if (first) asked_at_ = now;
    asked_ = true;
    if (trainer::MayLeave(chief, asked_at_, now, serve_)) {
      if (now - asked_at_ >= serve_) {
        LogWarning("asked to stop, and the chief has not come to its end in time", {});
      }
      return true;
    }
    if (first) {
      trainer::Say(fmt::format("asked to stop: serving until the chief has saved, for {} s at most",
                               std::chrono::ceil<std::chrono::seconds>(serve_).count()));
    }
    return false;
  }
  void Pause() const { SystemClock().SleepFor(kLook, asked_ ? std::stop_token{} : stop_); }

 private:
  const Duration serve_;
  const std::stop_token stop_;
  bool asked_ = false;
  Duration asked_at_{};  // when we first saw that, monotonic
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
