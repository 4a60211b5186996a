// What a parameter server, or a worker beside it, makes of its chief: who is lost, whether the
// chief is still waited for, and when a process that was asked to stop may go
// (runtime/trainer/job/stop_times.h has the rules). One thread each.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cluster/tf_config.h"
#include "runtime/parameter/messages/chief_watch.h"

namespace meshtrain::worker {

// How long between two looks at the chief.
inline constexpr Duration kLook = std::chrono::milliseconds(100);

// Says, look by look, who is lost and who is back, and when there is nobody left to serve.
class ChiefNews {
 public:
  ChiefNews(const cluster::TfConfig& tf_config, Duration peer_return, Clock& clock = SystemClock());

  // trainer::ChiefStays. Whoever has not looked for a while stood still itself, and has heard
  // nothing meanwhile: that silence is not the chief's.
  Status Look(parameter::ChiefSeen seen);

 private:
  static constexpr Duration kStoodStill = 10 * kLook;

  Clock& clock_;
  const std::string chief_, self_;
  const Duration peer_return_;
  const Duration began_;
  Duration looked_, woke_;
  bool silent_ = false;
  std::set<std::string> lost_;
};

// What is left of a process's life once it was asked to stop.
class Serving {
 public:
  // `serve`: for at most so long.
  Serving(Duration serve, std::stop_token stop, Clock& clock = SystemClock());
  // trainer::MayLeave, from the first look after `stop` on.
  bool MayEnd(const parameter::ChiefSeen& chief);
  // Until the next look; ends at the stop, where that has not been seen yet.
  void Pause() const;

 private:
  Clock& clock_;
  const Duration serve_;
  const std::stop_token stop_;
  std::optional<Duration> asked_at_;  // when we first saw that, monotonic
};

}  // namespace meshtrain::worker
