// How the processes of a job share the time between SIGTERM and SIGKILL.
//
// Deleted or suspended, a job's pods are asked to stop at about the same time, chief, servers and
// workers alike. The chief must then end the steps under way and save, for which the others must
// still be there. So they serve until the chief says that it leaves, or is silent as if it had; and
// in any case no longer than their own time allows.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

namespace meshtrain::cluster {

// The pod's terminationGracePeriodSeconds, where its template says one; else Kubernetes' default.
inline constexpr std::string_view kEnvStopGrace = "MESHTRAIN_STOP_GRACE_SECONDS";
inline constexpr Duration kDefaultStopGrace = std::chrono::seconds(30);

// Silence of another process that counts as its loss, in the mesh and beside parameter servers
// alike; a connection that breaks counts at once.
inline constexpr Duration kLostAfter = std::chrono::milliseconds(1500);

// Counted from the request to stop. Kept true: steps <= save <= serve <= the grace period.
struct StopTimes {
  Duration steps{};  // the chief: for steps that are under way
  Duration save{};   // the chief: until it gives a checkpoint up
  Duration serve{};  // servers and workers: for the chief to come to its end
};
// Of a pod's grace period. {30 s} gives 15, 24 and 27.
constexpr StopTimes StopTimesOf(Duration grace) {
  return {grace / 10 * 5, grace / 10 * 8, grace / 10 * 9};
}

// What the variable holds. Errors: kInvalidArgument naming it.
inline Result<Duration> ParseStopGrace(const std::string& text) {
  const auto seconds = ParseInt(text);
  if (!seconds || *seconds < 0) {
    return InvalidArgument(std::string(kEnvStopGrace) + ": expected seconds from 0, got: " + text);
  }
  return BoundedSeconds(*seconds);
}

}  // namespace meshtrain::cluster
