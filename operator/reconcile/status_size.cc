// A status stays small, whatever programs and other controllers had to say.
#include <algorithm>

#include "operator/api/json.h"
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

// Texts are cut to the first of these that is short enough for all.
struct Cut {
  size_t message;  // of a condition
  size_t line;     // of a pod in trouble
  size_t reason;
  size_t pods;  // in trouble
  size_t path;
};
constexpr Cut kCuts[] = {{500, 80, 128, api::kMaxWorst, 512},
                         {240, 80, 64, api::kMaxWorst, 512},
                         {120, 40, 40, 5, 256},
                         {60, 20, 40, 2, 128},
                         {40, 0, 40, 0, 64}};

// At most so large as JSON, without making it: texts at double length, for what must be escaped.
size_t UpperBound(const api::JobStatus& status) {
  size_t bytes = 2000 + 2 * status.what_to_do.size();  // figures, times, counts by role
  for (const auto& [type, condition] : status.conditions) {
    bytes += 140 + condition.reason.size() + 2 * condition.message.size();
  }
  for (const api::Trouble& pod : status.worst) {
    bytes += 60 + pod.pod.size() + 2 * (pod.reason.size() + pod.last_line.size());
  }
  bytes += 80 * status.recovery.recent.size() + 60 * status.recovery.out_of_memory.size();
  const auto tally = [&](const api::InPlace& in_place) {
    bytes += 40 + 100 * in_place.lost.size();
  };
  tally(status.recovery.in_place);
  for (const auto& [role, in_place] : status.recovery.in_place_by_role) tally(in_place);
  if (status.checkpoint) bytes += 2 * status.checkpoint->path.size();
  if (status.plan) bytes += 2 * (status.plan->mesh.size() + status.plan->hash.size());
  return bytes;
}

}  // namespace

void FitStatus(api::JobStatus* status) {
  if (UpperBound(*status) <= api::kMaxStatusBytes) return;
  for (const Cut& cut : kCuts) {
    if (api::StatusToJson(*status).size() <= api::kMaxStatusBytes) return;
    for (auto& [type, condition] : status->conditions) {
      condition.message = Tidy(condition.message, cut.message);
    }
    if (status->worst.size() > cut.pods) status->worst.resize(cut.pods);
    for (api::Trouble& pod : status->worst) {
      pod.reason = Tidy(pod.reason, cut.reason);
      pod.last_line = Tidy(pod.last_line, cut.line);
    }
    if (status->checkpoint) status->checkpoint->path = Tidy(status->checkpoint->path, cut.path);
    if (status->plan) status->plan->mesh = Tidy(status->plan->mesh, cut.path);
  }
}

}  // namespace meshtrain::reconcile
