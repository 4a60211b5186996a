// When a process that serves a chief leaves although the job is not done, and when a chief gives up
// saving (runtime/cluster/stop_grace.h).
#pragma once

#include <stop_token>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/thread.h"
#include "runtime/cluster/stop_grace.h"
#include "runtime/membership/environment.h"
#include "runtime/parameter/messages/chief_watch.h"

namespace meshtrain::trainer {

// Of this process, by what its environment says. Errors: kInvalidArgument naming the variable.
inline Result<cluster::StopTimes> StopTimesIn(const membership::Environment& environment) {
  const auto text = environment(cluster::kEnvStopGrace);
  if (!text) return cluster::StopTimesOf(cluster::kDefaultStopGrace);
  MT_ASSIGN_OR_RETURN(const Duration grace, cluster::ParseStopGrace(*text).From(Origin::kManifest));
  return cluster::StopTimesOf(grace);
}

// As long as processes of a mesh wait for each other at first (team.h): pods come up one by one.
inline constexpr Duration kChiefComes = std::chrono::minutes(10);

// OK, or kUnavailable of kPeers: no chief came since `began`, or it has not come back in time.
// Monotonic times; `peer_return` is counted from when it was last heard, 0: it is not waited for.
inline Status ChiefStays(const std::string& chief, const parameter::ChiefSeen& seen, Duration began,
                         Duration now, Duration peer_return) {
  const auto text = [](Duration d) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(d).count()) + " s";
  };
  if (!seen.heard) {
    if (now - began < kChiefComes) return OkStatus();
    return Unavailable(chief + ": expected it to call within " + text(kChiefComes) +
                       ", got: nothing")
        .From(Origin::kPeers);
  }
  const Duration silent = now - *seen.heard;
  if ((!seen.left && silent < cluster::kLostAfter) || silent < peer_return) return OkStatus();
  return Unavailable(chief + ": expected it back within " + text(peer_return) +
                     ", got: " + (seen.left ? "it left " : "nothing for ") + text(silent) +
                     (seen.left ? " ago" : ""))
      .From(Origin::kPeers);
}

// Of a process that was asked to stop: its chief may have been asked too, and be busy with its end.
inline constexpr Duration kChiefSilence = std::chrono::seconds(5);

// Whether a server or worker that was asked to stop at `asked` may go at `now`, both monotonic.
constexpr bool MayLeave(const parameter::ChiefSeen& chief, Duration asked, Duration now,
                        Duration serve) {
  return chief.left || !chief.heard || now - *chief.heard >= kChiefSilence || now - asked >= serve;
}

// A token that is requested so long after `stop` was. A thread of its own waits for it.
class LateStop {
 public:
  // Once. Errors: kUnavailable (no thread).
  Status Start(std::stop_token stop, Duration after) {
    const auto wait = [this, stop, after](std::stop_token done) {
      std::stop_source either;
      const std::stop_callback asked(stop, [&] { either.request_stop(); });
      const std::stop_callback over(done, [&] { either.request_stop(); });
      while (SystemClock().SleepFor(std::chrono::hours(1), either.get_token())) {
      }
      if (!done.stop_requested() && SystemClock().SleepFor(after, done)) late_.request_stop();
    };
    MT_ASSIGN_OR_RETURN(thread_, StartThread("the time to stop", wait));
    return OkStatus();
  }
  std::stop_token token() const { return late_.get_token(); }

 private:
  std::stop_source late_;
  std::jthread thread_;  // last: it uses the member above
};

}  // namespace meshtrain::trainer
