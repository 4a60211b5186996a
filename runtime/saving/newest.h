// Which checkpoint to go on from: the newest whole one. Of one whose bytes are damaged the log says
// so, and the one before is tried.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/membership/team.h"

namespace meshtrain::saving {

// Reads the checkpoint at `path` and keeps what it read; kDataLoss: try the one before.
using LoadCheckpoint = std::function<Status(const std::string& path)>;

// The first of `candidates` (newest first) that `load` takes; nothing where there are none. Errors:
// load's; kDataLoss, of the oldest, where none is whole.
Result<std::optional<checkpoint::Candidate>> TakeNewest(
    const std::vector<checkpoint::Candidate>& candidates, const LoadCheckpoint& load);

// The newest whole checkpoint in `folder`, which `take` takes; its step. Errors: also kNotFound
// where there is none.
Result<int64_t> RestoreNewest(
    const std::string& folder,
    const std::function<Status(std::unique_ptr<checkpoint::Checkpoint>)>& take);

// The same one in every process of a team, which all call it after Join: the chief says which (the
// others' `candidates` do not count), and it is taken when all could load it. Errors: also the
// team's; the chief's where it could not list them; another process's, with its name and code.
// What `load` says of files is kOutput, so that none of it is taken for a lost peer (failure.h).
Result<std::optional<checkpoint::Candidate>> TakeNewestTogether(
    membership::Team& team, const std::string& folder,
    const Result<std::vector<checkpoint::Candidate>>& candidates, const LoadCheckpoint& load,
    std::stop_token stop);

}  // namespace meshtrain::saving
