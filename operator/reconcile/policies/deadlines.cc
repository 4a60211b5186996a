#include <cmath>

#include "operator/reconcile/policy.h"
#include "runtime/base/time_text.h"

namespace meshtrain::reconcile {

// activeDeadlineSeconds counts the time between start (or resume) and now, and what was spent
// before suspensions. startupDeadlineSeconds counts from the start until the job first ran since
// then.
void Deadlines(const View& view, Draft* draft) {
  const api::RunPolicy& policy = view.job.spec.run_policy;
  const auto start = draft->next.start_time;
  if (!start) return;
  if (policy.active_deadline_seconds) {
    const Duration before = BoundedSeconds(std::round(draft->next.active_seconds_before));
    const TimePoint due = *start + BoundedSeconds(*policy.active_deadline_seconds) - before;
    if (view.now >= due) {
      return draft->Fail(Reason::kDeadlineExceeded,
                         "the job was active for longer than runPolicy.activeDeadlineSeconds, " +
                             std::to_string(*policy.active_deadline_seconds) + " s");
    }
    draft->WakeAt(due);
  }
  if (policy.startup_deadline_seconds) {
    // A pod that fails before the job ever ran is no start.
    if (HasRun(view.job.status) || Runs(view, *draft)) return;  // nobody looked when it began to
    const TimePoint due = *start + BoundedSeconds(*policy.startup_deadline_seconds);
    if (view.now >= due) {
      return draft->Fail(Reason::kStartupDeadlineExceeded,
                         "the job was not running within runPolicy.startupDeadlineSeconds, " +
                             std::to_string(*policy.startup_deadline_seconds) + " s");
    }
    draft->WakeAt(due);
  }
}

}  // namespace meshtrain::reconcile
