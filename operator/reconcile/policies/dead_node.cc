// Pods whose node does not answer. Such a node may be off, or only cut off with its processes
// alive: then a second chief would write beside the first. Nobody but the cluster's administrator
// knows, so that a pod is made again only where the Node object was deleted or tainted
// out-of-service, or where the user said with deadNodeSeconds how long is long enough.
#include "operator/reconcile/policy.h"
#include "runtime/base/time_text.h"

namespace meshtrain::reconcile {
namespace {

// A pod that goes on for so long after its grace period is worth a word.
constexpr std::chrono::seconds kLongEnd{60};

std::string Remedy(const std::optional<int64_t>& patience) {
  if (patience) {
    return ": it is replaced by force after runPolicy.deadNodeSeconds, " +
           std::to_string(*patience) + " s";
  }
  return ": it is replaced when the Node is deleted or tainted "
         "node.kubernetes.io/out-of-service, since its processes may live on "
         "(runPolicy.deadNodeSeconds is not set)";
}

// When the deletion of a pod should have been done, by the operator's clock; nothing: it cannot
// say, or nobody asked for it. A duration of the API server's clock after a moment of ours.
std::optional<TimePoint> Overdue(const PodSeen& pod) {
  if (!pod.delete_requested || !pod.delete_due || !pod.delete_seen) return std::nullopt;
  return *pod.delete_seen + (*pod.delete_due - *pod.delete_requested);
}

// Nobody can see whether its node lives.
bool Blind(const PodSeen& pod) { return pod.node_state == NodeState::kUnseen && !pod.node.empty(); }

void TellLongEnd(const View& view, const PodSeen& pod, Draft* draft) {
  const auto overdue = Overdue(pod);
  if (!overdue) return;
  const TimePoint due = *overdue + Duration(kLongEnd);
  if (view.now < due) return draft->WakeAt(due);
  draft->Wait(Reason::kPodDoesNotEnd,
              pod.name +
                  " should have ended a minute ago and is still there: a finalizer or its "
                  "node" +
                  (pod.node.empty() ? "" : " " + pod.node) + " holds it" +
                  (Blind(pod) ? Remedy(view.job.spec.run_policy.dead_node_seconds) : ""));
}

}  // namespace

bool OnDeadNode(const View& view, const PodSeen& pod, Draft* draft) {
  TellLongEnd(view, pod, draft);
  if (pod.node_state == NodeState::kGone || pod.node_state == NodeState::kOutOfService) return true;
  const std::optional<int64_t>& patience = view.job.spec.run_policy.dead_node_seconds;
  const auto past = [&](std::optional<TimePoint> since) {
    if (!since || !patience) return false;
    const TimePoint due = *since + BoundedSeconds(*patience);
    if (view.now < due) draft->WakeAt(due);
    return view.now >= due;
  };
  // A pod that outlives its grace period by so much has nobody left to end it.
  if (Blind(pod)) return past(Overdue(pod));
  if (pod.node_state != NodeState::kNotReady) return false;
  if (past(pod.node_not_ready_since)) return true;
  draft->Wait(Reason::kNodeNotReady,
              pod.name + " is on the node " + pod.node + ", which is not ready" + Remedy(patience));
  return false;
}

}  // namespace meshtrain::reconcile
