// Who is stuck: alive, but standing still while others wait for it. Pure; times are readings of one
// monotonic clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::membership {

// How far a member is, in its own words. Every member counts the same collectives and agreements in
// the same order.
struct MemberProgress {
  int64_t step = 0;
  uint64_t collective = 0;  // how many were begun in this incarnation
  std::string waiting_at;   // the instruction, or the agreement, that waits for others; "": neither
  uint64_t agreements = 0;  // how many were begun in this incarnation
  std::string busy_with;    // what it does by itself that may take long; "": nothing of the kind
  double step_seconds =
      0;  // its own time in its last step, without waiting for others; 0: none yet
  friend bool operator==(const MemberProgress&, const MemberProgress&) = default;
};

// A member's progress, and since when it has been so.
struct Standing {
  cluster::TaskId task;
  MemberProgress progress;
  Duration moved{};          // when any of this but waiting_at last changed
  Duration waiting_since{};  // where waiting_at is not empty: since when it waits there

  // Takes what the member says now.
  void Report(MemberProgress now_at, Duration now);
};

// "stands at step 5, collective 3, and computes"
std::string Where(const MemberProgress& at);

// Whose fault it is that nobody moves, as kUnavailable naming the member that is furthest behind
// and where it stands. Nothing while all is well: while nobody has waited for `stuck_after`, the
// one that is furthest behind has moved within it, or is busy with what may take long (what the
// others wait in has a deadline of its own). Members that all wait at one place are stuck too,
// though none of them is behind.
std::optional<Status> FindStuck(std::span<const Standing> members, Duration now,
                                Duration stuck_after);

// "1.6 s"
std::string SecondsText(Duration duration);

}  // namespace meshtrain::membership
