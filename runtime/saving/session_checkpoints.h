// Saving and resuming the variables of an execute::Session, for a program of one's own:
//
//   MT_ASSIGN_OR_RETURN(const auto checkpoints, SessionCheckpoints::Create(
//       *session, variables, {.folder = "checkpoints", .team = team.get(), .data = &batches}));
//   MT_ASSIGN_OR_RETURN(const auto restored, checkpoints->Restore());
//   if (restored) position = restored->position;
//   ...
//   MT_RETURN_IF_ERROR(checkpoints->Save(position));
//
// What was saved on one mesh is loaded on any other. The processes of a team share the folder: each
// writes and reads what its own devices hold. One thread, the session's.
#pragma once

#include <chrono>
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
  };
  // Of `variables`, which all lie on one mesh, by their names: those of the model, of the optimizer
  // and whatever else the next step depends on. Makes the folder. The session and the team outlive
  // it. Errors: kInvalidArgument for no variable, or two of one name; base/file.h's.
  static Result<std::unique_ptr<SessionCheckpoints>> Create(
      execute::Session& session, std::vector<program::Variable> variables, Options options);

  struct Restored {
    train::Position position;
    std::string path;  // the checkpoint's own folder
  };
  // Loads the newest complete checkpoint into the variables; nothing where there is none, and then
  // they stay as they are. Of one that is damaged the log says which file and where, and the one
  // before is taken. With a team every process calls it, and all take the same one. Errors, with
  // the variables as they were: kInvalidArgument naming a variable that it lacks or holds in
  // another type; kDataLoss naming the file where none is whole; base/file.h's; the team's.
  Result<std::optional<Restored>> Restore(std::stop_token stop = {});

  // Saves the variables as the checkpoint of `position.step`, with the position and where the data
  // stands. Returns when it is complete, in every process. With a team every process calls it for
  // the same step; who gets an error leaves (or joins again), so that the others learn of it.
  // Errors: base/file.h's for a folder that cannot be written; kUnavailable naming a process that
  // was lost; kUnknown where another's part does not appear (a folder that they do not share);
  // kInternal, in every process and with nothing saved, where devices hold copies that differ
  // (copies.h).
  Status Save(const train::Position& position);

 private:
  SessionCheckpoints(execute::Session& session, std::vector<program::Variable> variables,
                     Options options)
      : session_(session), variables_(std::move(variables)), o_(std::move(options)) {}

  execute::Session& session_;
  const std::vector<program::Variable> variables_;
  const Options o_;
};

}  // namespace meshtrain::saving
