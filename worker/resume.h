// Where a job goes on, and which checkpoints the manifest lets it go on from.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/train/loop.h"

namespace meshtrain::worker {

// Where a resumed job goes on.
struct Resumed {
  train::Position position;
  std::string path;  // the checkpoint's folder
};

// Whether a job of so many epochs is done there.
bool IsEnd(const train::Position& position, int64_t epochs, int64_t steps_per_epoch);

// The checkpoints in `folder` that a job may go on from, newest first. With `resume` false there
// are none: a folder of our own (`own`) is emptied. Errors: kFailedPrecondition for one of the
// user's that holds some; ListCheckpoints'.
Result<std::vector<checkpoint::Candidate>> ResumeCandidates(const std::string& folder, bool own,
                                                            bool resume);
// Of a run that is over, newest first as they are listed. They go oldest first: whatever ends this
// in between leaves the newest, which still says that the run is over, and none that a later start
// would go on from. Errors: checkpoint::RemoveCheckpoint's.
Status RemoveCheckpoints(const std::vector<checkpoint::Candidate>& candidates);

}  // namespace meshtrain::worker
