// What a member and the roster say to each other (proto/meshtrain/v1/rendezvous.proto), as plain
// values for the code that decides. A member's messages go through one stream, in order, and so do
// the roster's; a stream that breaks loses what was under way.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/cluster/contract.h"
#include "runtime/membership/membership.h"
#include "runtime/membership/stuck.h"

namespace meshtrain::membership {

// The first message of a stream, and each later wish for the next incarnation.
struct JoinMessage {
  cluster::TaskId task;
  uint64_t instance = 0;          // this process among all that were started for the task; not 0
  uint64_t last_incarnation = 0;  // the newest that it was a member of; 0: none
  int64_t checkpoint_step = 0;
  std::string data_address;
  std::string host;
  std::vector<cluster::TaskId> expected;  // the members, as it knows the cluster
  std::vector<uint64_t>
      last_members;  // the instances of last_incarnation, in the order of processes
  friend bool operator==(const JoinMessage&, const JoinMessage&) = default;
};
struct BeatMessage {
  uint64_t incarnation = 0;  // what the progress is of
  MemberProgress progress;
  friend bool operator==(const BeatMessage&, const BeatMessage&) = default;
};
struct LeaveMessage {
  friend bool operator==(const LeaveMessage&, const LeaveMessage&) = default;
};
using MemberMessage = std::variant<JoinMessage, BeatMessage, LeaveMessage>;

struct WelcomeMessage {
  Incarnation incarnation;
  friend bool operator==(const WelcomeMessage&, const WelcomeMessage&) = default;
};
// The incarnation is over.
struct AlarmMessage {
  uint64_t incarnation = 0;
  Status why;
  friend bool operator==(const AlarmMessage&, const AlarmMessage&) = default;
};
struct PulseMessage {
  std::string missing;  // to one that joins: who is not there yet
  friend bool operator==(const PulseMessage&, const PulseMessage&) = default;
};
// `task` left on purpose; of the receiver itself: the leave is noted.
struct LeftMessage {
  cluster::TaskId task;
  friend bool operator==(const LeftMessage&, const LeftMessage&) = default;
};
using RosterMessage = std::variant<WelcomeMessage, AlarmMessage, PulseMessage, LeftMessage>;

// One member's part of an all-gather.
struct AgreeMessage {
  cluster::TaskId task;
  uint64_t instance = 0;
  uint64_t incarnation = 0;
  uint64_t round = 0;  // 0, 1, ...: its calls in this incarnation
  std::string name;
  std::string text;
  Duration timeout{};
  friend bool operator==(const AgreeMessage&, const AgreeMessage&) = default;
};

inline constexpr size_t kMaxAgreeBytes = size_t{1} << 20;
// Ids stay exact in JSON and in doubles.
inline constexpr uint64_t kMaxIncarnation = uint64_t{1} << 53;

}  // namespace meshtrain::membership
