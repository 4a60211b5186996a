#include <algorithm>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {

bool EndedWell(const PodSeen& pod) {
  if (pod.phase != PodPhase::kSucceeded || pod.exit_code.value_or(0) != 0) return false;
  // Told to stop, a program may well leave with 0 before its work is done. Whether it ended before
  // the order cannot be told: its end has its node's time, the order the API server's.
  return !pod.delete_requested;
}

std::optional<std::string> Success(const View& view, const std::vector<Failure>& failures) {
  const api::Spec& spec = view.job.spec;
  const auto done = [&](TaskId task) {
    const PodSeen* pod = view.Ours(task);
    return pod != nullptr && pod->attempt >= view.job.status.recovery.restart_all_below &&
           EndedWell(*pod);
  };
  const auto ignored = [&](TaskId task) {
    return std::any_of(failures.begin(), failures.end(), [&](const Failure& failure) {
      return failure.task == task && failure.verdict == Verdict::kIgnore;
    });
  };
  const TaskId leader = api::Leader(spec);
  std::string message;
  if (spec.success_policy == api::kSuccessAllWorkers) {
    if (leader.role == Role::kChief && !done(leader)) return std::nullopt;
    bool some = leader.role == Role::kChief;
    for (int32_t i = 0; i < api::Replicas(spec, Role::kWorker); ++i) {
      if (done({Role::kWorker, i})) {
        some = true;
      } else if (!ignored({Role::kWorker, i})) {
        return std::nullopt;
      }
    }
    if (!some) return std::nullopt;
    message = "all workers have succeeded";
  } else {
    if (!done(leader)) return std::nullopt;
    message = cluster::PodName(view.job.metadata.name, leader) + " has succeeded";
  }
  if (spec.wait_for_evaluator && !done({Role::kEvaluator, 0}) && !ignored({Role::kEvaluator, 0})) {
    return std::nullopt;
  }
  return message;
}

}  // namespace meshtrain::reconcile
