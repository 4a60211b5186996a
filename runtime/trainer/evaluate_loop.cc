#include "runtime/trainer/evaluate_loop.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/saving/final.h"
#include "runtime/saving/resume.h"

namespace meshtrain::trainer {
namespace {

// Of `candidates`, newest first, none of which need stay there. While a run takes the place of
// another both may be there, and the other's steps be the larger ones. Looks at all of them only
// where the newest is not of `known`, a run, or is one that will be replaced.
std::optional<checkpoint::Index> NewestOfNewestRun(
    const std::vector<checkpoint::Candidate>& candidates, const std::string& known,
    const std::function<bool(const checkpoint::Index&)>& is_replaced) {
  std::optional<checkpoint::Index> newest;
  for (const checkpoint::Candidate& candidate : candidates) {
    const auto checkpoint = checkpoint::Checkpoint::Open(candidate.path);
    if (!checkpoint.ok()) continue;
    const checkpoint::Index& index = (*checkpoint)->index();
    if (!newest || saving::RunOf(index) > saving::RunOf(*newest)) newest = index;
    if (saving::RunIdOf(*newest) == known && !(is_replaced && is_replaced(*newest))) break;
  }
  return newest;
}

}  // namespace

Result<int64_t> EvaluateLoop(
    const std::string& folder,
    const std::function<Status(const checkpoint::Checkpoint& checkpoint)>& evaluate,
    const EvaluateOptions& options, std::stop_token stop) {
  const auto is_final = options.is_final ? options.is_final : saving::IsFinal;
  int64_t evaluated = 0;
  std::string run = options.run;
  int64_t newest = options.after_step;
  Duration since = options.clock->Monotonic();
  while (!stop.stop_requested()) {
    MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates,
                        checkpoint::ListCheckpoints(folder).From(Origin::kOutput));
    const auto last = NewestOfNewestRun(candidates, run, options.is_replaced);
    if (last && saving::RunIdOf(*last) != run) {
      run = saving::RunIdOf(*last);
      newest = -1;
    }
    if (last && options.is_replaced && options.is_replaced(*last)) candidates.clear();
    std::reverse(candidates.begin(), candidates.end());
    for (const checkpoint::Candidate& candidate : candidates) {
      if (candidate.step <= newest) continue;
      if (stop.stop_requested()) return evaluated;
      const auto checkpoint = checkpoint::Checkpoint::Open(candidate.path);
      if (checkpoint.ok() && saving::RunIdOf((*checkpoint)->index()) != run) continue;
      newest = candidate.step;
      since = options.clock->Monotonic();
      Status status = checkpoint.status().From(Origin::kOutput);
      if (status.ok()) status = evaluate(**checkpoint);
      // Data that is damaged or not there is no checkpoint that is.
      const bool data = status.origin() == Origin::kInput;
      if (!data &&
          (status.code() == StatusCode::kNotFound || status.code() == StatusCode::kDataLoss)) {
        if (checkpoint.ok() && is_final((*checkpoint)->index())) return status;
        LogWarning("a checkpoint was not evaluated",
                   {{"path", candidate.path}, {"error", status.message()}});
        continue;
      }
      MT_RETURN_IF_ERROR(status);
      ++evaluated;
    }
    // Asked of the newest each time: a job may only know later that it was the last.
    if (!candidates.empty()) {
      const auto checkpoint = checkpoint::Checkpoint::Open(candidates.back().path);
      if (checkpoint.ok() && saving::RunIdOf((*checkpoint)->index()) == run &&
          is_final((*checkpoint)->index())) {
        return evaluated;
      }
    }
    if (options.clock->Monotonic() - since > options.patience) {
      return DeadlineExceeded(folder + ": expected the final checkpoint, got: nothing after step " +
                              std::to_string(newest) + " for too long")
          .From(Origin::kOutput);
    }
    options.clock->SleepFor(options.poll, stop);
  }
  return evaluated;
}

}  // namespace meshtrain::trainer
