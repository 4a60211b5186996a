#include <cmath>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {

// As TFJob (and as Kueue expects): suspending deletes all pods and the pod group and forgets the
// start time; resuming starts anew. Templates may change in between, and the new pods are made from
// the new ones.
bool Suspend(const View& view, Draft* draft) {
  api::JobStatus& next = draft->next;
  if (view.job.spec.run_policy.suspend) {
    if (!view.Is(ConditionType::kSuspended)) {
      if (next.start_time) {
        EndWait(draft);
        next.active_seconds_before +=
            std::round(std::chrono::duration<double>(view.now - *next.start_time).count());
        // Pods of before may still be seen after the job was resumed; nothing that they did counts
        // then.
        next.recovery.restart_all_below = ++next.recovery.attempt;
      }
      draft->Event(false, Reason::kJobSuspended, "the job is suspended");
    }
    next.start_time.reset();
    draft->Set(ConditionType::kCreated, true, Reason::kJobCreated, "the job was accepted");
    draft->Set(ConditionType::kSuspended, true, Reason::kJobSuspended, "runPolicy.suspend is true");
    for (const ConditionType type :
         {ConditionType::kRunning, ConditionType::kRestarting, ConditionType::kStalled}) {
      if (next.conditions.contains(type)) {
        draft->Set(type, false, Reason::kJobSuspended, "the job is suspended");
      }
    }
    DeleteOurs(view, draft, "the job is suspended", [](const PodSeen&) { return true; });
    DeleteGang(view, "the job is suspended", draft);
    return true;
  }
  if (view.Is(ConditionType::kSuspended)) {
    draft->Set(ConditionType::kSuspended, false, Reason::kJobResumed, "the job was resumed");
    draft->Event(false, Reason::kJobResumed, "the job is resumed");
    next.start_time = view.stamp;
  }
  return false;
}

}  // namespace meshtrain::reconcile
