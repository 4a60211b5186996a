#include "runtime/distribute/parameter/evaluate.h"

#include <algorithm>
#include <vector>

#include "runtime/base/log.h"

namespace meshtrain::parameter {
namespace {

bool SaysFinal(const checkpoint::Index& index) {
  const auto it = index.metadata.find(std::string(kFinalKey));
  return it != index.metadata.end() && it->second == "true";
}

}  // namespace

Result<int64_t> EvaluateLoop(const std::string& folder,
                             const std::function<Status(const checkpoint::Checkpoint& checkpoint)>& evaluate,
                             const EvaluateOptions& options, std::stop_token stop) {
  const auto is_final = options.is_final ? options.is_final : SaysFinal;
  int64_t evaluated = 0;
  int64_t newest = options.after_step;
  Duration since = options.clock->Monotonic();
  while (!stop.stop_requested()) {
    MT_ASSIGN_OR_RETURN(std::vector<checkpoint::Candidate> candidates, checkpoint::ListCheckpoints(folder));
    std::reverse(candidates.begin(), candidates.end());
    for (const checkpoint::Candidate& candidate : candidates) {
      if (candidate.step <= newest) continue;
      if (stop.stop_requested()) return evaluated;
      newest = candidate.step;
      since = options.clock->Monotonic();
      const auto checkpoint = checkpoint::Checkpoint::Open(candidate.path);
      Status status = checkpoint.status();
      if (status.ok()) status = evaluate(**checkpoint);
      if (status.code() == StatusCode::kNotFound || status.code() == StatusCode::kDataLoss) {
        if (checkpoint.ok() && is_final((*checkpoint)->index())) return status;
        LogWarning("a checkpoint was not evaluated", {{"path", candidate.path}, {"error", status.message()}});
        continue;
      }
      MT_RETURN_IF_ERROR(status);
      ++evaluated;
      if (is_final((*checkpoint)->index())) return evaluated;
    }
    if (options.clock->Monotonic() - since > options.patience) {
      return DeadlineExceeded(folder + ": expected the final checkpoint, got: nothing after step " +
                              std::to_string(newest) + " for too long");
    }
    options.clock->SleepFor(options.poll, stop);
  }
  return evaluated;
}

}  // namespace meshtrain::parameter
