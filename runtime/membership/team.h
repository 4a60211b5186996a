// The processes that hold one mesh, joined: membership (who, since when) and the links that their
// collectives use.
//
//   MT_ASSIGN_OR_RETURN(auto team, Team::Create(options));
//   session options: process = team->process(), communicator = team->communicators()
//   for (;;) {
//     MT_ASSIGN_OR_RETURN(Incarnation now, team->Join(step, stop));  // all are here
//     Status status = TrainFromTheLastCheckpoint();
//     if (!Team::IsLoss(status)) break;  // else: somebody was lost; wait for its return
//   }
//
// When a member is lost, or stands still while others wait for it, every collective under way ends
// in kUnavailable naming it, on all survivors. Their variables may then be half updated: roll back
// before going on. Join, Agree, Largest and BroadcastFromChief are called by every process, in the
// same order, by the thread that runs the steps. The rest may be called from any thread.
#pragma once

#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/execute/session.h"

namespace meshtrain::membership {

struct Incarnation;  // membership.h
struct TeamOptions;  // team_options.h

class Team {
 public:
  // Listens; talks to nobody yet. Errors: kInvalidArgument (our task holds no part of the mesh),
  // kUnavailable (a port is taken).
  static Result<std::unique_ptr<Team>> Create(TeamOptions options);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int process() const;  // our place: chief first, then workers by index
  int processes() const;
  bool chief() const { return process() == 0; }  // or the first worker, where there is no chief
  std::string name(int process) const;           // "worker-2"

  // For SessionOptions; what it makes stays valid from incarnation to incarnation. `ring`: as
  // collective::MakeProcessCommunicator's.
  execute::MakeCommunicator communicators(bool ring = false);

  // Waits for all and links to them; then all have agreed on how they round
  // (arithmetic_agreement.h). `checkpoint_step`: the newest that we could go on from, -1: none.
  // Errors: kDeadlineExceeded, kUnavailable naming who is missing; kPermissionDenied,
  // kFailedPrecondition (another job, "stale incarnation", a process that computed before it
  // joined); kAborted where every process has to start again, to agree on a lesser instruction set;
  // kCancelled.
  Result<Incarnation> Join(int64_t checkpoint_step, std::stop_token stop);

  // Membership::Agree.
  Result<std::vector<std::string>> Agree(const std::string& name, const std::string& text,
                                         Duration timeout, std::stop_token stop);
  // The plan hashes of all processes must be equal. Errors: kInvalidArgument naming two that
  // differ.
  Status AgreeOnPlans(std::span<const uint64_t> hashes, std::stop_token stop);
  // So must what decides the order of their examples (data::Cursor::fingerprint), of each pipeline
  // that is about to be read: each process takes its part of the same batches. Errors:
  // kInvalidArgument of Origin::kInput naming two that differ.
  Status AgreeOnData(std::span<const uint64_t> fingerprints, std::stop_token stop);

  // The largest of the processes' numbers, over the links: costs one small collective.
  Result<float> Largest(float mine);
  // The chief's bytes to everyone.
  Status BroadcastFromChief(std::span<std::byte> bytes);

  void ReportStep(int64_t step);
  // Membership's: our own time in the last step, and at the chief those of all.
  void ReportStepTime(Duration own);
  std::vector<double> StepSeconds() const;
  // While it lives this process is busy with what may take long and nobody can help with: reading
  // from or writing to a slow volume. The others wait for it to their own deadlines, instead of
  // taking it for stuck. One at a time.
  class [[nodiscard]] Busy {
   public:
    Busy(Team* team, const std::string& with);  // null: nothing
    ~Busy();
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Team* team_;
  };
  Status Leave(Duration timeout);

  uint64_t incarnation() const;  // that the last Join gave; 0: none yet
  // Requested when the incarnation that the last Join gave is over.
  std::stop_token lost() const;
  // Why, naming who was lost, as a collective that it ended; OK: it is not over.
  Status loss() const;

  // True for errors that mean a lost or stuck member: kUnavailable and kDeadlineExceeded of
  // Origin::kPeers. Join again, or leave with "retry me".
  static bool IsLoss(const Status& status);

 private:
  class Impl;
  explicit Team(std::unique_ptr<Impl> impl);
  // `differ` says what of two processes whose numbers differ, `why` what may be behind it.
  Status AgreeOn(const std::string& what, std::span<const uint64_t> numbers,
                 std::string_view differ, std::string_view why, std::stop_token stop);
  std::unique_ptr<Impl> impl_;
};

// The processes that TF_CONFIG names, when all of them have joined; null without TF_CONFIG, for a
// process that is alone. Call it before anything is computed. join_team.h has it with options.
Result<std::unique_ptr<Team>> JoinTeam();

}  // namespace meshtrain::membership
