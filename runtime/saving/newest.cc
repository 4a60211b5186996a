#include "runtime/saving/newest.h"

#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/save.h"
#include "runtime/saving/failure.h"

namespace meshtrain::saving {
namespace {

constexpr char kNoneLeft[] = "no whole checkpoint is left";

void WarnOfDamage(const std::string& path, const Status& why) {
  LogWarning("checkpoint is damaged, trying the one before",
             {{"path", path}, {"error", why.message()}});
}

}  // namespace

Result<std::optional<checkpoint::Candidate>> TakeNewest(
    const std::vector<checkpoint::Candidate>& candidates, const LoadCheckpoint& load) {
  for (const checkpoint::Candidate& candidate : candidates) {
    const Status loaded = load(candidate.path);
    if (loaded.ok()) return std::optional(candidate);
    if (loaded.code() != StatusCode::kDataLoss) return loaded;
    if (&candidate == &candidates.back()) return loaded.At(kNoneLeft);
    WarnOfDamage(candidate.path, loaded);
  }
  return std::optional<checkpoint::Candidate>();
}

Result<int64_t> RestoreNewest(
    const std::string& folder,
    const std::function<Status(std::unique_ptr<checkpoint::Checkpoint>)>& take) {
  MT_ASSIGN_OR_RETURN(const std::vector<checkpoint::Candidate> candidates,
                      checkpoint::ListCheckpoints(folder));
  const auto load = [&](const std::string& path) -> Status {
    MT_ASSIGN_OR_RETURN(auto checkpoint, checkpoint::Checkpoint::Open(path));
    return take(std::move(checkpoint));
  };
  MT_ASSIGN_OR_RETURN(const auto taken, TakeNewest(candidates, load));
  if (!taken) return NotFound(folder + ": expected a checkpoint, got: none");
  return taken->step;
}

Result<std::optional<checkpoint::Candidate>> TakeNewestTogether(
    membership::Team& team, const std::string& folder,
    const Result<std::vector<checkpoint::Candidate>>& candidates, const LoadCheckpoint& load,
    std::stop_token stop) {
  Status damage;
  for (size_t next = 0;; ++next) {
    // The chief says which; "" is none, '!' why it cannot go on.
    std::string offer;
    if (!candidates.ok()) {
      offer = "!" + TellFailure(candidates.status().From(Origin::kOutput));
    } else if (next < candidates->size()) {
      offer = std::to_string((*candidates)[next].step);
    } else if (next > 0) {
      offer = "!" + TellFailure(damage.At(kNoneLeft));
    }
    MT_ASSIGN_OR_RETURN(std::vector<std::string> said,
                        team.Agree("resume from", team.chief() ? offer : "", kAgreeTimeout, stop));
    offer = said[0];
    if (offer.starts_with('!')) return ToldFailure(team.name(0), offer.substr(1));
    if (offer.empty()) return std::optional<checkpoint::Candidate>();
    const auto step = ParseInt(offer);
    if (!step) {
      return Internal("resume: expected a step from " + team.name(0) + ", got: " + offer);
    }
    const std::string path = checkpoint::CheckpointFolder(folder, *step);
    const Status loaded = load(path);
    if (membership::Team::IsLoss(loaded)) return loaded;
    MT_ASSIGN_OR_RETURN(said, team.Agree("loaded", TellFailure(loaded), kAgreeTimeout, stop));
    if (!loaded.ok() && loaded.code() != StatusCode::kDataLoss) return loaded;
    bool all = true;
    for (int p = 0; p < team.processes(); ++p) {
      const Status theirs = ToldFailure(team.name(p), said[static_cast<size_t>(p)]);
      if (theirs.ok()) continue;
      if (theirs.code() != StatusCode::kDataLoss) return theirs;
      all = false;
      damage = theirs;
      if (team.chief()) WarnOfDamage(path, theirs);
    }
    if (all) return std::optional(checkpoint::Candidate{*step, path});
  }
}

}  // namespace meshtrain::saving
