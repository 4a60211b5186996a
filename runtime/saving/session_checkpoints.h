// Saving and resuming the variables of an execute::Session, for a program of one's own as for a
// training job:
//
//   MT_ASSIGN_OR_RETURN(const auto checkpoints, SessionCheckpoints::Create(
//       *session, variables, {.folder = "checkpoints", .team = team.get(), .data = &batches}));
//   MT_ASSIGN_OR_RETURN(const auto restored, checkpoints->Restore());
//   if (restored) position = restored->position;
//   ...
//   MT_RETURN_IF_ERROR(checkpoints->Save(position));
//
// What was saved on one mesh is loaded on any other. The processes of a team share the folder, and
// each writes and reads what its own devices hold; or the chief alone does, and sends what it
// reads. One thread, the session's.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/program/builder.h"
#include "runtime/train/loop.h"

namespace meshtrain::checkpoint {
struct Candidate;
struct SaveReport;
}  // namespace meshtrain::checkpoint
namespace meshtrain::data {
class Pipeline;
}
namespace meshtrain::membership {
class Team;
}

namespace meshtrain::saving {

class SessionCheckpoints {
 public:
  struct Options {
    std::string folder;
    int keep = 5;                      // complete checkpoints, the newest; 0: all
    membership::Team* team = nullptr;  // joined; null: one process
    // How long the chief waits for the others' parts.
    Duration parts_timeout = std::chrono::minutes(5);
    // Where it stands is saved and taken up with the variables; null: no data.
    data::Pipeline* data = nullptr;
    // Restore takes a checkpoint that does not say where the data stood (one of parameter servers):
    // the data stays where it stands.
    bool data_may_begin_anew = false;
    // Every process of the team reaches the folder.
    bool shared = true;
    // This process holds a copy of each variable, whatever others do: it is saved whole, and
    // compared with none. Without a team.
    bool copies = false;
    // Begin returns while the checkpoint is written.
    bool background = false;
    // Of the program whose variables these are, noted in checkpoints; "": not told. One that was
    // saved by another is taken where it fits, with a warning.
    std::string program_hash;
    // What to do about a checkpoint that does not fit, after the error: "give another folder".
    std::string advice;
  };
  // Of `variables`, which all lie on one mesh, by their names: those of the model, of the optimizer
  // and whatever else the next step depends on. Makes the folder. The session and the team outlive
  // it. Errors: kInvalidArgument for no variable, or two of one name; base/file.h's.
  static Result<std::unique_ptr<SessionCheckpoints>> Create(
      execute::Session& session, std::vector<program::Variable> variables, Options options);
  ~SessionCheckpoints();
  SessionCheckpoints(const SessionCheckpoints&) = delete;
  SessionCheckpoints& operator=(const SessionCheckpoints&) = delete;

  struct Restored {
    train::Position position;
    std::string path;  // the checkpoint's own folder
  };
  // Loads the newest complete checkpoint into the variables; nothing where there is none, and then
  // they stay as they are. Of one that is damaged the log says which file and where, and the one
  // before is taken. With a team every process calls it, and all take the same one. Errors, with
  // the variables as they were: kInvalidArgument naming a variable that it lacks or holds in
  // another type; kFailedPrecondition for one of a later step than 0 that does not say where the
  // data stood, or of other data; kDataLoss naming the file where none is whole; base/file.h's; the
  // team's. All that is about files is kOutput.
  Result<std::optional<Restored>> Restore(std::stop_token stop = {});
  // The same of certain checkpoints, newest first. Called where it counts: in the chief, once no
  // save is under way any more.
  using Candidates = std::function<Result<std::vector<checkpoint::Candidate>>()>;
  Result<std::optional<Restored>> Restore(const Candidates& candidates, std::stop_token stop);

  // Saves the variables as the checkpoint of `position.step`, with the position and where the data
  // stands. Returns when it is complete, in every process. With a team every process calls it for
  // the same step; who gets an error leaves (or joins again), so that the others learn of it.
  // Errors: base/file.h's for a folder that cannot be written; kUnavailable naming a process that
  // was lost; kUnknown where another's part does not appear (a folder that they do not share);
  // kInternal, in every process and with nothing saved, where devices hold copies that differ
  // (copies.h).
  Status Save(const train::Position& position);

  struct SaveExtras {
    std::optional<int64_t> pinned = {};  // as checkpoint::SaveOptions'; of the saves to come too
    std::map<std::string, std::string> notes = {};  // as checkpoint::SaveOptions': the chief's
  };
  // Takes the values now; with `background` they are written while the session goes on. Errors:
  // those of Save that are known by now; of the save before, as Wait gives them.
  Status Begin(const train::Position& position, SaveExtras extras);
  // Waits for the last save. With a team: kUnavailable when somebody was lost whose part of it is
  // missing; where all are here and one is missing nevertheless, kDeadlineExceeded of kOutput.
  Status Wait();
  // What the others will not complete is not waited for.
  void Abandon();
  // Other checkpoints' folders, which go when the next one is complete. Between saves.
  void set_replaces(std::vector<std::string> folders);
  // Whether the complete checkpoint of this step lies in the folder and is marked as a job's last
  // one (final.h), whoever did it.
  bool IsFinal(int64_t step) const;
  // The newest complete one that this process saved; in processes other than the chief, the newest
  // whose part is written. Thread-safe.
  std::optional<checkpoint::SaveReport> last() const;
  // How many that were begun came to nothing. Thread-safe.
  int64_t failures() const;

 private:
  class Impl;
  explicit SessionCheckpoints(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::saving
