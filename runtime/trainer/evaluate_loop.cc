#include "runtime/trainer/evaluate_loop.h"

#include <algorithm>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/saving/final.h"

namespace meshtrain::trainer {

Result<int64_t> EvaluateLoop(
    const std::string& folder,
    const std::function<Status(const checkpoint::Checkpoint& checkpoint)>& evaluate,
    const EvaluateOptions& options, std::stop_token stop) {
  const auto is_final = options.is_final ? options.is_final : saving::IsFinal;
  int64_t evaluated = 0;
  int64_t newest = options.after_step;
  Duration since = options.clock->Monotonic();
  while (!stop.stop_requested()) {
    MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates,
                        checkpoint::ListCheckpoints(folder).From(Origin::kOutput));
    std::reverse(candidates.begin(), candidates.end());
    for (const checkpoint::Candidate& candidate : candidates) {
      if (candidate.step <= newest) continue;
      if (stop.stop_requested()) return evaluated;
      newest = candidate.step;
      since = options.clock->Monotonic();
      const auto checkpoint = checkpoint::Checkpoint::Open(candidate.path);
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
      if (checkpoint.ok() && is_final((*checkpoint)->index())) return evaluated;
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
