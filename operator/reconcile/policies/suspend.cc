#include <algorithm>
#include <cmath>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {

void StandStill(const View& view, Reason reason, const std::string& message,
                const std::string& news, Draft* draft) {
  api::JobStatus& next = draft->next;
  const char* why =
      reason == Reason::kQueued ? "the queue holds the job back" : "the job is suspended";
  const auto before = view.job.status.conditions.find(ConditionType::kSuspended);
  const bool stood = before != view.job.status.conditions.end() && before->second.status;
  if (!stood || before->second.reason != api::ReasonName(reason)) {
    draft->Event(false, reason, news);
  }
  if (!stood && next.start_time) {
    EndWait(draft);
    // By another operator's clock it may not have begun yet.
    next.active_seconds_before += std::max(
        0.0, std::round(std::chrono::duration<double>(view.now - *next.start_time).count()));
    // Pods of before may still be seen after the job was resumed; nothing that they did counts
    // then.
    next.recovery.restart_all_below = ++next.recovery.attempt;
  }
  next.start_time.reset();
  draft->Set(ConditionType::kCreated, true, Reason::kJobCreated, "the job was accepted");
  draft->Set(ConditionType::kSuspended, true, reason, message);
  for (const ConditionType type :
       {ConditionType::kRunning, ConditionType::kRestarting, ConditionType::kStalled}) {
    if (next.conditions.contains(type)) draft->Set(type, false, reason, why);
  }
  DeleteOurs(view, draft, why, [](const PodSeen&) { return true; });
  DeleteGang(view, why, draft);
}

// As TFJob: suspending deletes all pods and the pod group and forgets the start time; resuming
// starts anew. Templates may change in between, and the new pods are made from the new ones. A
// queue holds a job back in the same way, and says so.
bool Suspend(const View& view, bool sound, Draft* draft) {
  if (view.job.spec.run_policy.suspend) {
    LeaveQueue(view, draft);
    StandStill(view, Reason::kJobSuspended, "runPolicy.suspend is true", "the job is suspended",
               draft);
    return true;
  }
  const auto held = HeldByQueue(view, sound, draft);
  if (held) {
    Accept(view, draft);
    StandStill(view, Reason::kQueued, *held, *held, draft);
    return true;
  }
  if (view.Is(ConditionType::kSuspended)) {
    const bool queued = view.job.status.conditions.at(ConditionType::kSuspended).reason ==
                        api::ReasonName(Reason::kQueued);
    const Reason reason = queued ? Reason::kAdmitted : Reason::kJobResumed;
    draft->Set(ConditionType::kSuspended, false, reason,
               queued ? "the queue lets the job run" : "the job was resumed");
    draft->Event(false, reason, queued ? "the queue lets the job run" : "the job is resumed");
    draft->next.start_time = view.stamp;
  }
  return false;
}

}  // namespace meshtrain::reconcile
