// When a process that serves a chief may leave although the job is not done, and when a chief gives
// up saving (runtime/cluster/stop_grace.h).
#pragma once

#include <stop_token>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/cluster/stop_grace.h"
#include "runtime/distribute/environment.h"
#include "runtime/distribute/parameter/chief_watch.h"

namespace meshtrain::worker {

// Of this process, by what its environment says. Errors: kInvalidArgument naming the variable.
inline Result<cluster::StopTimes> StopTimesIn(const distribute::Environment& environment) {
  const auto text = environment(cluster::kEnvStopGrace);
  if (!text) return cluster::StopTimesOf(cluster::kDefaultStopGrace);
  MT_ASSIGN_OR_RETURN(const Duration grace, cluster::ParseStopGrace(*text));
  return cluster::StopTimesOf(grace);
}

// As long as the chief takes a silent worker for lost.
inline constexpr Duration kChiefSilence = std::chrono::seconds(5);

// Whether a server or worker that was asked to stop at `asked` may go at `now`, both monotonic.
constexpr bool MayLeave(const parameter::ChiefSeen& chief, Duration asked, Duration now,
                        Duration serve) {
  return chief.left || !chief.heard || now - *chief.heard >= kChiefSilence || now - asked >= serve;
}

// A token that is requested so long after `stop` was. A thread of its own waits for it.
class LateStop {
 public:
  LateStop(std::stop_token stop, Duration after)
      : thread_([this, stop, after](std::stop_token done) {
          std::stop_source either;
          const std::stop_callback asked(stop, [&] { either.request_stop(); });
          const std::stop_callback over(done, [&] { either.request_stop(); });
          while (SystemClock().SleepFor(std::chrono::hours(1), either.get_token())) {
          }
          if (!done.stop_requested() && SystemClock().SleepFor(after, done)) late_.request_stop();
        }) {}
  std::stop_token token() const { return late_.get_token(); }

 private:
  std::stop_source late_;
  std::jthread thread_;  // last: it uses the member above
};

}  // namespace meshtrain::worker
