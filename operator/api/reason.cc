#include "operator/api/reason.h"

#include <algorithm>

namespace meshtrain::api {
namespace {

constexpr ReasonInfo kReasons[] = {
    {Reason::kJobCreated, "JobCreated", "The job was accepted."},
    {Reason::kManifestWarning, "ManifestWarning", "Allowed, but probably not meant."},
    {Reason::kJobRunning, "JobRunning", "All pods are there and the leading one runs."},
    {Reason::kJobRestarting, "JobRestarting", "Some or all processes are made again."},
    {Reason::kJobSuspended, "JobSuspended", "`runPolicy.suspend` is true."},
    {Reason::kJobResumed, "JobResumed", "`runPolicy.suspend` is false again."},
    {Reason::kQueued, "Queued",
     "The job waits in its queue, or was sent back into it: the message is the queue's."},
    {Reason::kAdmitted, "Admitted", "The queue has let the job run."},
    {Reason::kJobSucceeded, "JobSucceeded", "The job has ended well."},
    {Reason::kJobFailed, "JobFailed", "The job has failed; the condition's reason says why."},
    {Reason::kJobFinished, "JobFinished", "The job has ended, so this holds no longer."},
    {Reason::kInvalidSpec, "InvalidSpec", "The manifest breaks a rule that admission let pass.",
     "Mend the manifest as the message says."},
    {Reason::kPodFailed, "PodFailed", "A process ended with an error.",
     "Look at its last lines with `meshtrain logs`, mend the program or its data, and submit the "
     "job again."},
    {Reason::kBackoffLimitExceeded, "BackoffLimitExceeded",
     "More restarts than `runPolicy.backoffLimit`.",
     "Mend what ends the process, as its last line says, or raise `runPolicy.backoffLimit`."},
    {Reason::kRestartBudgetExceeded, "RestartBudgetExceeded",
     "More restarts of a role than its `restartBudget`.",
     "Mend what ends the process, as its last line says, or raise the role's `restartBudget`."},
    {Reason::kDeadlineExceeded, "DeadlineExceeded",
     "Active for longer than `runPolicy.activeDeadlineSeconds`.",
     "Raise `runPolicy.activeDeadlineSeconds` and submit the job again."},
    {Reason::kStartupDeadlineExceeded, "StartupDeadlineExceeded",
     "Not running within `runPolicy.startupDeadlineSeconds`.",
     "See what it waited for in its events; free that, or raise "
     "`runPolicy.startupDeadlineSeconds`."},
    {Reason::kPodDisrupted, "PodDisrupted",
     "A pod was evicted, preempted, turned away by its node, or lost with it."},
    {Reason::kPodLost, "PodLost", "A pod was deleted by somebody else."},
    {Reason::kRestartAll, "RestartAll", "A failure rule wants all processes restarted."},
    {Reason::kClusterChanged, "ClusterChanged",
     "The set of processes changed: all restart together, so that all know the same."},
    {Reason::kChildLost, "ChildLost",
     "Somebody deleted an object that the pods mount: it is made again and all restart together."},
    {Reason::kNameTaken, "NameTaken", "A name that the job needs belongs to another object.",
     "Delete the other object, or give the job another name."},
    {Reason::kNameHeld, "NameHeld",
     "A name that the job needs is held by an object of a former job that is going away.",
     "Wait; if it does not go, see which finalizer holds it."},
    {Reason::kQuotaExceeded, "QuotaExceeded", "A ResourceQuota refuses an object.",
     "Free or raise the quota, or ask for less."},
    {Reason::kForbidden, "Forbidden", "The API server forbids an object.",
     "Ask who administers the namespace: the message names the policy or the right."},
    {Reason::kRefused, "Refused", "The API server refuses an object for another cause.",
     "Mend the field of the manifest that the message names."},
    {Reason::kServerError, "ServerError",
     "The API server cannot make an object: an admission webhook that does not answer, for one.",
     "Ask who administers the cluster: the message names what does not answer."},
    {Reason::kNodeNotReady, "NodeNotReady",
     "A pod's node does not answer; its processes may live on, so they are not replaced.",
     "Bring the node back; if it is off for good, delete its Node or taint it "
     "`node.kubernetes.io/out-of-service`."},
    {Reason::kPodDoesNotEnd, "PodDoesNotEnd",
     "A pod is being deleted and does not go: a finalizer or its node holds it.",
     "See the finalizers of the pod, and its node."},
    {Reason::kPodGroupPending, "PodGroupPending", "The gang scheduler has not admitted the job.",
     "Free room for the whole job; the pod group says what is missing."},
    {Reason::kFormerProcesses, "FormerProcesses",
     "All restart together, and the former processes have to end before others start.",
     "Nothing: it passes when they have ended."},
    {Reason::kRestartBackoff, "RestartBackoff", "Restarts follow each other more slowly.",
     "Nothing: it passes. The last line of the process that failed says why it restarts."},
    {Reason::kUnschedulable, "Unschedulable", "No node takes a pod.",
     "Add or free nodes with what the message says is missing, or ask for less."},
    {Reason::kImagePull, "ImagePull", "An image cannot be pulled.",
     "Correct the image's name or tag, load it onto the nodes, or name an `imagePullSecret`."},
    {Reason::kCrashLoop, "CrashLoop", "A container ends again and again.",
     "Look at its last lines with `meshtrain logs`, and mend the program or its arguments."},
    {Reason::kContainerWaits, "ContainerWaits", "A container waits for another cause, named.",
     "Make what the message names, as a Secret or a ConfigMap."},
    {Reason::kSlowStart, "SlowStart",
     "A pod has had its node for a minute and has not started: a volume that does not mount, for "
     "one.",
     "See the pod's events (`meshtrain events --pods`): a claim, a Secret or a volume that does "
     "not mount."},
    {Reason::kOtherScheduler, "OtherScheduler",
     "Under gang scheduling a template names a scheduler of its own.",
     "Remove `schedulerName` from the template."},
    {Reason::kNotWaiting, "NotWaiting", "The job waits for nothing."},
    {Reason::kNoProgress, "NoProgress", "The step has not moved for too long.",
     "`meshtrain logs --all` shows who waits for whom; suspend and resume the job to go on from "
     "its last checkpoint."},
    {Reason::kMoving, "Moving", "The step moves, or nothing is to be expected."},
    {Reason::kJobStalled, "JobStalled", "The step has not moved for too long."},
    {Reason::kSlowReplica, "SlowReplica", "One process takes far longer a step than the others.",
     "Look at its node for other pods, a slow disk or throttled CPUs; its pod, deleted, is made "
     "again."},
    {Reason::kEvenReplicas, "EvenReplicas", "The processes take about as long a step."},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    if (static_cast<size_t>(kReasons[i].reason) != i) return false;
  }
  return true;
}
static_assert(InOrder() && std::size(kReasons) == static_cast<size_t>(Reason::kEvenReplicas) + 1);

}  // namespace

std::span<const ReasonInfo> Reasons() { return kReasons; }

std::string_view ReasonName(Reason reason) { return kReasons[static_cast<size_t>(reason)].name; }

std::optional<Reason> ParseReason(std::string_view name) {
  const auto found = std::find_if(std::begin(kReasons), std::end(kReasons),
                                  [&](const ReasonInfo& info) { return info.name == name; });
  if (found == std::end(kReasons)) return std::nullopt;
  return found->reason;
}

}  // namespace meshtrain::api
