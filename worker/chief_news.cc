#include "worker/chief_news.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/trainer/job/say.h"
#include "runtime/trainer/job/stop_times.h"

namespace meshtrain::worker {
namespace {

std::string ChiefOf(const cluster::ClusterSpec& cluster) {
  using cluster::Role;
  return cluster::ToString(
      {cluster.hosts.contains(Role::kChief) ? Role::kChief : Role::kWorker, 0});
}

}  // namespace

ChiefNews::ChiefNews(const cluster::TfConfig& tf_config, Duration peer_return, Clock& clock)
    : clock_(clock),
      chief_(ChiefOf(tf_config.cluster)),
      self_(cluster::ToString(tf_config.task)),
      peer_return_(peer_return),
      began_(clock.Monotonic()),
      looked_(began_),
      woke_(began_) {}

Status ChiefNews::Look(parameter::ChiefSeen seen) {
  const Duration now = clock_.Monotonic();
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

Serving::Serving(Duration serve, std::stop_token stop, Clock& clock)
    : clock_(clock), serve_(serve), stop_(std::move(stop)) {}

bool Serving::MayEnd(const parameter::ChiefSeen& chief) {
  if (!stop_.stop_requested()) return false;
  const Duration now = clock_.Monotonic();
  const bool first = !asked_at_;
  if (first) asked_at_ = now;
  if (trainer::MayLeave(chief, *asked_at_, now, serve_)) {
    if (now - *asked_at_ >= serve_) {
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

void Serving::Pause() const { clock_.SleepFor(kLook, asked_at_ ? std::stop_token{} : stop_); }

}  // namespace meshtrain::worker
