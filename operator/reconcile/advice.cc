// What the user can do about a job that waits, fails or is slow, in one line.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

struct CodeAdvice {
  int code;
  std::string_view advice;
};
// Exit codes that say the same of whatever image (docs/reference/run.md, 128 + a signal).
constexpr CodeAdvice kAnyImage[] = {
    {126, "Correct the container's command: what it names cannot be executed there."},
    {127, "Correct the container's command: the image has nothing of that name."},
    {128, "Correct the container's command or its image, which the node could not start."},
    {134, "The program crashed: look at its last lines with `meshtrain logs`."},
    {137,
     "See who killed it: its node's memory, the pod's events. Where that passes, a higher "
     "`runPolicy.backoffLimit` goes on from the last checkpoint."},
    {139, "The program crashed: look at its last lines with `meshtrain logs`."},
};
// Those of our own worker (runtime/cluster/contract.h).
constexpr CodeAdvice kOurWorker[] = {
    {64, "Correct the worker's arguments in the template, as its last line says."},
    {65, "Mend or replace the data that the last line names."},
    {66, "Make the file that the last line names available: see `spec.claims` and its path."},
    {70, "A bug: `meshtrain report` makes an archive for whoever is to look."},
    {73, "Give the run a place that it can write to: see `spec.output`."},
    {74, "Free room on the disk that the last line names, or see why it fails."},
    {78, "Mend the manifest as the last line says."},
    {79, "Lower the learning rate or clip the gradients; the last line names what was not finite."},
    {138,
     "See the process or the port that the last line names. Where that passes, a higher "
     "`runPolicy.backoffLimit` goes on from the last checkpoint."},
};
constexpr std::string_view kOutOfMemory =
    "Raise the container's memory limit, or make the batch smaller.";

// What a reason alone does not tell: words of the kubelet's or the runtime's in the condition.
struct WordAdvice {
  Reason reason;
  std::string_view words, advice;
};
constexpr std::string_view kAnotherMachine =
    "Use an image that is built for the architecture of the nodes that run it.";
constexpr WordAdvice kTheirWords[] = {
    {Reason::kContainerWaits, "runAsNonRoot",
     "Use an image that runs as another user than root, or set securityContext.runAsUser in the "
     "template."},
    {Reason::kForbidden, "violates PodSecurity",
     "Set what the message names in the template's securityContext, or use a namespace that allows "
     "the pod as it is."},
    {Reason::kUnschedulable, "persistentvolumeclaim",
     "Make the claim that the message names, or correct its name in `spec.claims`, `spec.output` "
     "or the template."},
    {Reason::kUnschedulable, "unbound immediate PersistentVolumeClaims",
     "See why its claim is not bound: `kubectl describe pvc` names what is missing."},
    // Not a matter of the job's: its manifest asks for what the node offers.
    {Reason::kRestartBackoff, "UnexpectedAdmissionError",
     "See the node's device plugin, which does not give what it offers. The pod is tried again, "
     "and "
     "no limit counts it."},
    {Reason::kNoProgress, "the first step",
     "`meshtrain logs --all` shows who waits for whom; where nobody is reached, see the "
     "namespace's "
     "NetworkPolicies and the cluster's DNS."},
    {Reason::kPodFailed, "exec format error", kAnotherMachine},
    {Reason::kBackoffLimitExceeded, "exec format error", kAnotherMachine},
    {Reason::kCrashLoop, "exec format error", kAnotherMachine},
};

std::string_view OfTheirWords(Reason reason, std::string_view message) {
  for (const WordAdvice& row : kTheirWords) {
    if (row.reason == reason && message.find(row.words) != std::string_view::npos) {
      return row.advice;
    }
  }
  return {};
}

template <size_t N>
std::string_view Find(const CodeAdvice (&table)[N], int code) {
  for (const CodeAdvice& row : table) {
    if (row.code == code) return row.advice;
  }
  return {};
}

// What the pod that is worst off left with; empty: nothing that says more than its reason.
std::string_view OfTheWorst(const api::TrainingJob& job, const api::JobStatus& status) {
  const auto ended =
      std::find_if(status.worst.begin(), status.worst.end(),
                   [](const api::Trouble& pod) { return pod.exit_code.has_value(); });
  if (ended == status.worst.end()) return {};
  if (ended->reason == "OOMKilled") return kOutOfMemory;
  const bool ours =
      !job.spec.program.empty() &&
      std::none_of(job.spec.replica_specs.begin(), job.spec.replica_specs.end(),
                   [](const auto& replica) { return replica.second.pod_template.has_image; });
  const std::string_view special = ours ? Find(kOurWorker, *ended->exit_code) : std::string_view();
  return special.empty() ? Find(kAnyImage, *ended->exit_code) : special;
}

}  // namespace

std::string WhatToDo(const api::TrainingJob& job, const api::JobStatus& status) {
  // The most telling first.
  for (const ConditionType type : {ConditionType::kFailed, ConditionType::kWaiting,
                                   ConditionType::kStalled, ConditionType::kStraggling}) {
    if (!api::IsTrue(status, type)) continue;
    const auto reason = api::ParseReason(status.conditions.at(type).reason);
    if (!reason) return {};  // another operator's word
    const bool of_a_process =
        *reason == Reason::kPodFailed || *reason == Reason::kBackoffLimitExceeded ||
        *reason == Reason::kRestartBudgetExceeded || *reason == Reason::kCrashLoop;
    std::string_view special = OfTheirWords(*reason, status.conditions.at(type).message);
    if (special.empty() && of_a_process) special = OfTheWorst(job, status);
    return std::string(special.empty() ? api::Reasons()[static_cast<size_t>(*reason)].advice
                                       : special);
  }
  return {};
}

}  // namespace meshtrain::reconcile
