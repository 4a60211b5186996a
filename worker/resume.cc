#include "worker/resume.h"

#include "runtime/checkpoint/save.h"

namespace meshtrain::worker {

bool IsEnd(const train::Position& p, int64_t epochs, int64_t steps_per_epoch) {
  return p.epoch >= epochs || (p.epoch == epochs - 1 && p.batch >= steps_per_epoch);
}

Result<std::vector<checkpoint::Candidate>> ResumeCandidates(const std::string& folder, bool own,
                                                            bool resume) {
  MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates,
                      checkpoint::ListCheckpoints(folder));
  if (candidates.empty() || resume) return candidates;
  if (!own) {
    return FailedPrecondition(
        folder + ": it holds checkpoints up to step " + std::to_string(candidates[0].step) +
        ", but the manifest says not to resume: expected `checkpoint.resume: Latest` or another "
        "`checkpoint.path`");
  }
  MT_RETURN_IF_ERROR(RemoveCheckpoints(candidates));
  return std::vector<checkpoint::Candidate>();
}

Status RemoveCheckpoints(const std::vector<checkpoint::Candidate>& candidates) {
  for (auto oldest = candidates.rbegin(); oldest != candidates.rend(); ++oldest) {
    MT_RETURN_IF_ERROR(checkpoint::RemoveCheckpoint(oldest->path));
  }
  return OkStatus();
}

}  // namespace meshtrain::worker
