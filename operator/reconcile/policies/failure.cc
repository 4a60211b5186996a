#include <algorithm>
#include <array>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

// status.reason of pods that were ended by their node or by the scheduler, or turned away by their
// node before they started, not ended by themselves (kubelet's eviction, preemption, graceful
// shutdown and admission: pkg/kubelet/{eviction,preemption,nodeshutdown,lifecycle,cm}; the taint
// and garbage controllers).
constexpr std::array<std::string_view, 10> kDisruptions = {"Evicted",
                                                           "Preempting",
                                                           "Preempted",
                                                           "NodeLost",
                                                           "Shutdown",
                                                           "Terminated",
                                                           "NodeShutdown",
                                                           "NodeAffinity",
                                                           "TopologyAffinityError",
                                                           "UnexpectedAdmissionError"};
// "OutOfcpu", "OutOfpods", "OutOfnvidia.com/gpu": lifecycle.InsufficientResourceError.
constexpr std::string_view kOutOfResource = "OutOf";

template <typename List, typename Value>
bool MayBe(const List& list, const Value& value) {
  return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
}

bool Matches(const api::FailureRule& rule, const Failure& failure) {
  if (failure.disruption && rule.reasons.empty()) return false;
  if (!MayBe(rule.roles, failure.task.role)) return false;
  const PodSeen& pod = *failure.pod;
  if (!rule.exit_codes.empty() && (!pod.exit_code || !MayBe(rule.exit_codes, *pod.exit_code))) {
    return false;
  }
  return rule.reasons.empty() || (!pod.reason.empty() && MayBe(rule.reasons, pod.reason)) ||
         (!pod.exit_reason.empty() && MayBe(rule.reasons, pod.exit_reason));
}

Verdict ByAction(std::string_view action) {
  if (action == api::kActionRestartAll) return Verdict::kRestartAll;
  if (action == api::kActionFail) return Verdict::kFail;
  if (action == api::kActionIgnore) return Verdict::kIgnore;
  return Verdict::kRestart;
}

bool WasKilledForMemoryBefore(const View& view, const Failure& failure) {
  const std::string replica = cluster::ToString(failure.task);
  return std::any_of(view.job.status.recovery.out_of_memory.begin(),
                     view.job.status.recovery.out_of_memory.end(),
                     [&](const api::Recovery::OutOfMemory& entry) {
                       // The same pod, seen again after its end was noted, is not a second time.
                       return entry.replica == replica && entry.attempt < failure.pod->attempt;
                     });
}

Verdict ByPolicy(const View& view, Failure* failure) {
  const std::string& policy = view.job.spec.replica_specs.at(failure->task.role).restart_policy;
  if (policy == api::kRestartNever) {
    failure->message += ", and its restartPolicy is Never";
    return Verdict::kFail;
  }
  if (policy != api::kRestartExitCode || !failure->pod->exit_code) return Verdict::kRestart;
  if (failure->out_of_memory && WasKilledForMemoryBefore(view, *failure)) {
    failure->message += ", the second time in a row";
    return Verdict::kFail;
  }
  // A pod that failed although its training container ended well failed elsewhere: worth another
  // try.
  if (cluster::ClassifyExit(*failure->pod->exit_code) != cluster::ExitClass::kPermanent) {
    return Verdict::kRestart;
  }
  failure->message += ", which is not retried";
  return Verdict::kFail;
}

}  // namespace

bool IsDisruption(const PodSeen& pod) {
  return pod.disrupted || pod.reason.starts_with(kOutOfResource) ||
         std::find(kDisruptions.begin(), kDisruptions.end(), pod.reason) != kDisruptions.end();
}

std::vector<Failure> JudgeFailures(const View& view, Draft* draft) {
  std::vector<Failure> out;
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task) || pod->delete_requested) continue;
    // To be made again anyhow (all pods restart, or the job was suspended since): how it ended is
    // of no more interest.
    if (pod->attempt < view.job.status.recovery.restart_all_below) continue;
    Failure failure{.pod = pod, .task = task};
    if (pod->phase != PodPhase::kFailed) {
      if (pod->phase == PodPhase::kSucceeded || !OnDeadNode(view, *pod, draft)) continue;
      failure.disruption = failure.force = true;
      failure.message = pod->name + " was lost with its node " + pod->node;
      out.push_back(std::move(failure));
      continue;
    }
    failure.disruption = IsDisruption(*pod);
    failure.out_of_memory =
        pod->exit_code == cluster::kExitKilled && pod->exit_reason == "OOMKilled";
    const std::string reason = !pod->reason.empty() ? pod->reason : pod->exit_reason;
    failure.message = pod->name + (failure.disruption ? " was disrupted" : " failed");
    if (pod->exit_code) failure.message += " with exit code " + std::to_string(*pod->exit_code);
    if (!reason.empty()) failure.message += " (" + reason + ")";
    const auto rule = std::find_if(
        view.job.spec.failure_rules.begin(), view.job.spec.failure_rules.end(),
        [&](const api::FailureRule& candidate) { return Matches(candidate, failure); });
    if (rule != view.job.spec.failure_rules.end()) {
      failure.verdict = ByAction(rule->action);
      failure.message += ", failurePolicy.rules[" +
                         std::to_string(rule - view.job.spec.failure_rules.begin()) + "] says " +
                         rule->action;
    } else if (!failure.disruption) {
      failure.verdict = ByPolicy(view, &failure);
    }
    // What a program said before somebody ended it does not say why.
    const bool ended = failure.disruption || pod->exit_code == cluster::kExitKilled ||
                       pod->exit_code == cluster::kExitTerminated;
    const std::string line = ended ? std::string() : LastLine(*pod);
    if (!line.empty()) failure.message += ": " + line;
    out.push_back(std::move(failure));
  }
  return out;
}

}  // namespace meshtrain::reconcile
