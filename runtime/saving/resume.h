// Where a job goes on, and which checkpoints the manifest lets it go on from.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/train/loop.h"

namespace meshtrain::saving {

// Where a resumed job goes on.
struct Resumed {
  train::Position position;
  std::string path;  // the checkpoint's folder
};

// Whether a job of so many epochs has no step left there; a validation it may have.
bool IsEnd(const train::Position& position, int64_t epochs, int64_t steps_per_epoch);

// In the metadata of a checkpoint in a folder of a job's own: the run's number, from 0. A run that
// goes on from a checkpoint has its number; one that begins anew, in a folder that holds other
// runs', has a number of its own, so that its checkpoints are told from theirs whatever their steps
// are.
inline constexpr std::string_view kRunKey = "run";
int64_t RunOf(const checkpoint::Index& index);
// Beside it, in any folder: what the run drew when it began. Who reads checkpoints knows by it
// whose they are, whatever else lay in the folder before. "": of a version that drew none.
inline constexpr std::string_view kRunIdKey = "run_id";
std::string RunIdOf(const checkpoint::Index& index);
std::string DrawRunId();
// What a run's checkpoints say of it: its number, in a folder of the job's own; its id, where it
// drew one.
std::map<std::string, std::string> RunMetadata(std::optional<int64_t> run, const std::string& id);

struct ResumeOptions {
  std::string folder;
  bool own = false;  // the folder is the job's own, not the user's
  bool resume = true;
  // Of the final checkpoint (final.h) of a run in a folder of our own: whether the job goes on from
  // it. Where it does not, and where nobody says, the run is replaced.
  std::function<bool(const checkpoint::Index&)> goes_on = {};
  std::optional<int64_t> run = {};  // which run's, where it is known: this one's before a rollback
};

struct ResumeChoice {
  std::vector<checkpoint::Candidate> candidates;  // newest first; empty: from the beginning
  int64_t run = 0;                                // the number of the run that begins or goes on
  // Folders of other runs' checkpoints, oldest first. They go with the first checkpoint of this run
  // that is complete, not before: until then they are the only ones that a user has.
  std::vector<std::string> replaced;
};

// Removes nothing. Errors: kFailedPrecondition for a folder of the user's that holds checkpoints
// although `resume` is false; ListCheckpoints'.
Result<ResumeChoice> ChooseCheckpoints(const ResumeOptions& options);

}  // namespace meshtrain::saving
