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

namespace meshtrain::distribute {

// How far a member is, in its own words.
struct Progress {
  int64_t step = 0;
  uint64_t collective = 0;  // how many were begun in this incarnation
  std::string waiting_at;   // the instruction that waits for others; "": it computes
  friend bool operator==(const Progress&, const Progress&) = default;
};

// A member's progress, and since when it has been so.
struct Standing {
  cluster::TaskId task;
  Progress progress;
  Duration moved{};          // when step or collective last changed
  Duration waiting_since{};  // where waiting_at is not empty: since when it waits there

  // Takes what the member says now.
  void Report(Progress now_at, Duration now);
};

// Whose fault it is that nobody moves, as kUnavailable naming the member that is furthest behind
// and where it stands. Nothing while all is well: while nobody has waited for `stuck_after`, or the
// one that is furthest behind has moved within it. Members that all wait at one place are stuck
// too, though none of them is behind.
std::optional<Status> FindStuck(std::span<const Standing> members, Duration now,
                                Duration stuck_after);

// "1.6 s"
std::string SecondsText(Duration duration);

}  // namespace meshtrain::distribute
