// The roster of a job's members, as the process that serves keeps it: who is here, which
// incarnation is open, what they are about to agree on. Pure: each event goes in with a reading of
// a monotonic clock, answers come out.
//
// Kept true:
//   - At most one incarnation is open. It opens when every task has a process that is attached and
//     joins, and is over as soon as one of them is lost, stuck, replaced or joins anew. It never
//     opens again.
//   - Ids rise strictly: above `first_id` (the server gives its start's wall clock in milliseconds,
//     so that ids rise even where every process of the job was started anew and nobody remembers
//     the old ones, of which a frame may still be under way), above the last id here, and above
//     every id that a joiner was a member of (so that they rise even where the clock of a new
//     server is behind; only where both come together may they fall).
//   - A task has one process. A live one is never pushed out: another that comes meanwhile is sent
//     away to try again. Once it is gone, the first other process that joins replaces it for good
//     ("stale incarnation"). A new server learns who was replaced from the joiners: each says which
//     processes shared its last incarnation. Where nobody knows, the process that was a member
//     later is the newer; one that never was a member is newer than all that were.
//   - A connection that was told to end counts no more: what it still says was said before it knew.
//   - An agreement gives every member the same answer. There is one at a time: rounds count from 0
//     in each incarnation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runtime/membership/rendezvous_messages.h"

namespace meshtrain::membership {

struct RosterOptions {
  std::vector<cluster::TaskId> tasks;  // in the order of processes
  uint64_t first_id = 1;
  Duration lost_after{};
  Duration stuck_after{};
  Duration tick{};  // how often Tick comes: a longer pause was our own, and is nobody's silence
};

// --- events. A connection is a stream; a call is one Agree. Their numbers are never used twice and
// rise over time.
struct Said {
  uint64_t connection = 0;
  MemberMessage message;
};
struct Broken {  // the stream ended, by whatever cause
  uint64_t connection = 0;
  std::string why;
};
struct Asked {
  uint64_t call = 0;
  AgreeMessage message;
};
struct Withdrawn {  // the caller of an Agree waits no longer
  uint64_t call = 0;
};
struct Tick {};
using RosterEvent = std::variant<Said, Broken, Asked, Withdrawn, Tick>;

// --- answers
struct Tell {
  uint64_t connection = 0;
  RosterMessage message;
};
// The stream is to end with this status, after what was told before. OK after a leave; kAborted:
// the process was given up as lost, it may come back; kUnavailable: try again; others: do not.
struct End {
  uint64_t connection = 0;
  Status why;
};
struct Answer {  // of an Agree
  uint64_t call = 0;
  Status status;
  std::shared_ptr<const std::vector<std::string>> texts;  // where OK
};
using RosterAnswer = std::variant<Tell, End, Answer>;

class Roster {
 public:
  explicit Roster(RosterOptions options);

  std::vector<RosterAnswer> Handle(const RosterEvent& event, Duration now);

  // The open incarnation; 0: none.
  uint64_t open() const { return open_; }
  // Who an incarnation still waits for: "worker-1 (never came), worker-2 (lost: connection closed)
  // and 3 more".
  std::string Missing() const;
  bool joining(uint64_t connection) const;
  // Each member's own time in its last step, as it last said; 0 where it said none in the open
  // incarnation.
  std::vector<double> StepSeconds() const;

 private:
  // The newest process that is known to have been a member.
  struct Known {
    uint64_t incarnation = 0;
    uint64_t instance = 0;
  };
  struct Entry {
    cluster::TaskId task;
    Known known;
    uint64_t instance = 0;  // the newest process; 0: none came
    uint64_t newest_connection = 0;
    bool attached = false;
    bool joining = false;
    bool member = false;  // of the open incarnation
    bool left = false;
    uint64_t last_incarnation = 0;  // of this process
    std::string absence = "never came";
    Member about;
    Duration last_heard{};
    Standing standing;
    std::set<uint64_t> replaced;  // processes that may not come back
  };
  struct Part {
    uint64_t call = 0;
    std::string text;
  };
  struct Round {
    std::string name;
    cluster::TaskId first;  // whose name it is
    Duration started{};
    Duration deadline{};
    std::map<size_t, Part> parts;  // by entry
  };
  using Answers = std::vector<RosterAnswer>;

  void On(const Said& event, Duration now, Answers& out);
  void On(const Broken& event, Duration now, Answers& out);
  void On(const Asked& event, Duration now, Answers& out);
  void On(const Withdrawn& event, Duration now, Answers& out);
  void On(const Tick& event, Duration now, Answers& out);
  void OnJoin(uint64_t connection, const JoinMessage& join, Duration now, Answers& out);
  void OnBeat(Entry& entry, const BeatMessage& beat, Duration now);
  void OnLeave(Entry& entry, Answers& out);

  // What a joiner knows of the time before this server.
  void Learn(const JoinMessage& join, Answers& out);
  // Whether a process may take the entry, and if not, what it is told.
  Status Admit(const Entry& entry, uint64_t connection, const JoinMessage& join) const;
  void Open(Duration now, Answers& out);
  // The open incarnation is over.
  void Close(const Status& why, Answers& out);
  // The entry has no process any more. `lost`: nobody asked for it.
  void Detach(Entry& entry, std::string why, bool lost, Answers& out);
  // The round under way ends for all with `status`.
  void FailRound(const Status& status, Answers& out);
  Status CheckAsked(const AgreeMessage& message, size_t* index) const;

  Entry* Attached(uint64_t connection);
  Incarnation IncarnationFor(size_t index) const;

  RosterOptions options_;
  std::vector<Entry> entries_;
  std::map<uint64_t, size_t> by_connection_;  // the entries that are attached
  std::set<uint64_t> ended_;                  // connections told to end, until they are broken
  uint64_t open_ = 0;
  uint64_t last_id_ = 0;
  uint64_t highest_reported_ = 0;
  Status closed_why_;            // of last_id_, once it is over
  std::vector<Member> members_;  // of last_id_
  std::optional<Duration> last_tick_;

  uint64_t next_round_ = 0;
  std::optional<Round> round_;
  // The round before, for one that asks again.
  Status previous_status_;
  std::shared_ptr<const std::vector<std::string>> previous_texts_;
};

}  // namespace meshtrain::membership
