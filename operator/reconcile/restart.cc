#include <algorithm>
#include <cmath>

#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

using std::chrono::seconds;

// The first restart is at once; from the second within ten minutes on they wait 5, 10, 20 … 300 s.
constexpr seconds kPaceWindow{600};
constexpr seconds kFirstDelay{5};
constexpr seconds kLongestDelay{300};

bool Healthy(const PodSeen& pod) {
  return !pod.delete_requested &&
         (pod.phase == PodPhase::kRunning || pod.phase == PodPhase::kSucceeded);
}

// Pods that were there, all of them, and now are not, though nobody asked us for it: deleted,
// drained.
std::vector<TaskId> Lost(const View& view) {
  std::vector<TaskId> out;
  if (!view.Is(ConditionType::kRunning)) return out;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    const auto recorded = view.job.status.replica_statuses.find(role);
    if (recorded == view.job.status.replica_statuses.end()) continue;
    const int32_t known = std::min(replica.replicas, recorded->second.replicas);
    for (int32_t i = 0; i < known; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      if (pod == nullptr && view.orphans.contains({role, i})) continue;
      if (pod == nullptr || (pod->delete_requested && !EndedWell(*pod))) out.push_back({role, i});
    }
  }
  return out;
}

int32_t CountWithin(const api::Recovery& recovery, TimePoint now, std::optional<int64_t> window,
                    std::optional<Role> role) {
  return static_cast<int32_t>(std::count_if(
      recovery.recent.begin(), recovery.recent.end(), [&](const api::Recovery::Recent& recent) {
        const bool counts = recent.counted || (role && recent.in_place);
        return counts && (!role || recent.role == *role) &&
               (!window || recent.at > now - Duration(seconds(*window)));
      }));
}

void CheckBudgets(const View& view, const std::string& message, Draft* draft) {
  const api::RunPolicy& policy = view.job.spec.run_policy;
  const api::Recovery& recovery = draft->next.recovery;
  const std::string cause =
      message.empty() ? std::string("containers restarted in place") : message;
  if (policy.backoff_limit) {
    const int32_t used =
        policy.backoff_window_seconds
            ? CountWithin(recovery, view.now, policy.backoff_window_seconds, std::nullopt)
            : recovery.counted + RestartsInPlace(recovery, std::nullopt);
    if (used > *policy.backoff_limit) {
      return draft->Fail("BackoffLimitExceeded",
                         cause + ", after " + std::to_string(*policy.backoff_limit) +
                             " restarts, which runPolicy.backoffLimit allows");
    }
  }
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    if (!replica.restart_budget) continue;
    const auto counted = recovery.counted_by_role.find(role);
    const int32_t used =
        replica.restart_budget->window_seconds
            ? CountWithin(recovery, view.now, replica.restart_budget->window_seconds, role)
            : (counted == recovery.counted_by_role.end() ? 0 : counted->second) +
                  RestartsInPlace(recovery, role);
    if (used > replica.restart_budget->limit) {
      return draft->Fail("RestartBudgetExceeded",
                         cause + ", after " + std::to_string(replica.restart_budget->limit) +
                             " restarts, which replicaSpecs." +
                             std::string(cluster::RoleName(role)) + ".restartBudget allows");
    }
  }
}

// The list says whose *last* end was for want of memory.
void RememberMemory(const std::vector<Failure>& failures, api::Recovery* recovery) {
  for (const Failure& failure : failures) {
    if (failure.disruption || failure.verdict == Verdict::kIgnore) continue;
    const std::string replica = cluster::ToString(failure.task);
    auto& list = recovery->out_of_memory;
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const auto& entry) { return entry.replica == replica; });
    if (!failure.out_of_memory) {
      if (found != list.end() && found->attempt < failure.pod->attempt) list.erase(found);
    } else if (found != list.end()) {
      found->attempt = std::max(found->attempt, failure.pod->attempt);
    } else if (list.size() < api::kMaxRecent) {
      list.push_back({replica, failure.pod->attempt});
    }
  }
}

void OpenIncident(const View& view, const std::vector<const Failure*>& fresh,
                  const std::vector<TaskId>& lost, Draft* draft) {
  api::Recovery& recovery = draft->next.recovery;
  // Who is to blame: a counted failure that is not itself an answer to another's, else any counted,
  // else a disruption.
  const Failure* cause = nullptr;
  const auto rank = [](const Failure& failure) {
    if (failure.disruption) return 2;
    return failure.pod->exit_code == cluster::kExitRetry ? 1 : 0;
  };
  for (const Failure* failure : fresh) {
    if (cause == nullptr || rank(*failure) < rank(*cause)) cause = failure;
  }
  const bool counted = cause != nullptr && !cause->disruption;
  const Role role = cause != nullptr ? cause->task.role : lost.front().role;
  std::string message;
  if (cause != nullptr) {
    message = cause->message;
  } else {
    message = cluster::PodName(view.job.metadata.name, lost.front()) + " was deleted";
    if (lost.size() > 1) message += ", and " + std::to_string(lost.size() - 1) + " more";
  }

  ++recovery.attempt;
  ++recovery.incidents_by_role[role];
  if (counted) {
    ++recovery.counted;
    ++recovery.counted_by_role[role];
  } else {
    ++recovery.disruptions;
  }
  Remember({.at = view.stamp, .role = role, .counted = counted}, &recovery);
  const bool all = std::any_of(fresh.begin(), fresh.end(), [](const Failure* failure) {
    return failure->verdict == Verdict::kRestartAll;
  });
  if (all) recovery.restart_all_below = recovery.attempt;
  const char* reason = cause == nullptr    ? "PodLost"
                       : cause->disruption ? "PodDisrupted"
                                           : "PodFailed";
  draft->Set(ConditionType::kRestarting, true, all ? "RestartAll" : reason, message);
  // A job that has not run yet goes on waiting for its start.
  if (HasRun(draft->next)) draft->Set(ConditionType::kRunning, false, "JobRestarting", message);
  draft->Event(true, cause == nullptr ? "PodLost" : "JobRestarting",
               cause == nullptr
                   ? message + ": it is made again, and training goes on from the last checkpoint"
                   : message + (all ? ": all pods restart" : ": it restarts"));
}

}  // namespace

void Remember(api::Recovery::Recent entry, api::Recovery* recovery) {
  recovery->recent.push_back(entry);
  if (recovery->recent.size() <= api::kMaxRecent) return;
  // Windows count the counted ones, so the others go first.
  const auto oldest = std::find_if(
      recovery->recent.begin(), recovery->recent.end(),
      [](const api::Recovery::Recent& recent) { return !recent.counted && !recent.in_place; });
  recovery->recent.erase(oldest == recovery->recent.end() ? recovery->recent.begin() : oldest);
}

std::optional<Pace> NextAttempt(const api::JobStatus& status) {
  // The kubelet paces its own.
  std::vector<TimePoint> made;
  for (const api::Recovery::Recent& recent : status.recovery.recent) {
    if (!recent.in_place) made.push_back(recent.at);
  }
  if (made.empty()) return std::nullopt;
  const TimePoint last = made.back();
  const auto before = std::count_if(made.begin(), made.end() - 1, [&](TimePoint at) {
    return at > last - Duration(kPaceWindow);
  });
  if (before == 0) return std::nullopt;
  const auto delay = std::min<int64_t>(kLongestDelay.count(),
                                       kFirstDelay.count() << std::min<int64_t>(before - 1, 10));
  return Pace{.last = last, .due = last + Duration(seconds(delay))};
}

void Restart(const View& view, const std::vector<Failure>& failures, Draft* draft) {
  const api::Recovery& before = view.job.status.recovery;
  const bool open = view.Is(ConditionType::kRestarting);
  std::vector<const Failure*> fresh;
  for (const Failure& failure : failures) {
    if (failure.verdict == Verdict::kFail) {
      RememberMemory(failures, &draft->next.recovery);
      return draft->Fail("PodFailed", failure.message);
    }
    if (failure.verdict == Verdict::kIgnore) continue;
    const bool joined = open && failure.pod->attempt < before.attempt;
    // An open incident of single pods does not cover a rule that wants all of them; one of all pods
    // would have kept this pod from being judged.
    if (!joined || failure.verdict == Verdict::kRestartAll) fresh.push_back(&failure);
  }
  const std::vector<TaskId> lost = Lost(view);
  RememberMemory(failures, &draft->next.recovery);
  if (!fresh.empty() || !lost.empty()) OpenIncident(view, fresh, lost, draft);
  CheckBudgets(view, fresh.empty() ? std::string() : fresh.front()->message, draft);
  if (draft->finished()) return;

  const int32_t stale_below = draft->next.recovery.restart_all_below;
  std::set<TaskId> going;
  for (const Failure& failure : failures) {
    if (failure.verdict == Verdict::kIgnore) continue;
    going.insert(failure.task);
    draft->Add(Phase::kRemove,
               DeletePod{.name = failure.pod->name,
                         .uid = failure.pod->uid,
                         .grace_seconds = failure.force ? std::optional<int64_t>(0) : std::nullopt,
                         .why = failure.message});
  }
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task) || pod->delete_requested || going.contains(task) ||
        pod->attempt >= stale_below) {
      continue;
    }
    const bool dead = OnDeadNode(view, *pod, draft);
    draft->Add(Phase::kRemove,
               DeletePod{.name = pod->name,
                         .uid = pod->uid,
                         .grace_seconds = dead ? std::optional<int64_t>(0) : std::nullopt,
                         .why = "all pods restart"});
  }

  // The incident is over when everybody is back. A pod that is still to be deleted may seem to run:
  // its node is dead.
  if (!api::IsTrue(draft->next, ConditionType::kRestarting) || !going.empty() || !lost.empty()) {
    return;
  }
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      const bool ignored =
          std::any_of(failures.begin(), failures.end(), [&](const Failure& failure) {
            return failure.pod == pod && failure.verdict == Verdict::kIgnore;
          });
      if (pod == nullptr || pod->attempt < stale_below || !(Healthy(*pod) || ignored)) return;
    }
  }
  const Duration spent =
      view.now - draft->next.conditions[ConditionType::kRestarting].last_transition;
  // Before the first run this is time that it waits.
  if (HasRun(draft->next)) {
    draft->next.goodput.restarting_seconds +=
        std::round(std::chrono::duration<double>(spent).count());
  }
  draft->Set(ConditionType::kRestarting, false, "JobRunning", "all pods run again");
}

}  // namespace meshtrain::reconcile
