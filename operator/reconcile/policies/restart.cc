#include <algorithm>
#include <cmath>

#include "operator/reconcile/policy.h"
#include "runtime/base/time_text.h"

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
    // So many were there, but while the job is scaled not always the first: only where fewer are
    // there now has one gone.
    const int32_t known = std::min(replica.replicas, recorded->second.replicas);
    std::vector<TaskId> gone;
    int32_t there = 0;
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      const bool is_there = pod == nullptr ? view.orphans.contains({role, i})
                                           : !pod->delete_requested || EndedWell(*pod);
      there += is_there ? 1 : 0;
      if (!is_there && i < known) gone.push_back({role, i});
    }
    if (there < known) out.insert(out.end(), gone.begin(), gone.end());
  }
  return out;
}

int32_t CountWithin(const api::Recovery& recovery, TimePoint now, std::optional<int64_t> window,
                    std::optional<Role> role) {
  return static_cast<int32_t>(std::count_if(
      recovery.recent.begin(), recovery.recent.end(), [&](const api::Recovery::Recent& recent) {
        const bool counts = recent.counted || (role && recent.in_place);
        return counts && (!role || recent.role == *role) &&
               (!window || recent.at > now - BoundedSeconds(*window));
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
      return draft->Fail(Reason::kBackoffLimitExceeded,
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
      return draft->Fail(Reason::kRestartBudgetExceeded,
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
    } else if (list.size() < api::kMaxOutOfMemory) {
      list.push_back({replica, failure.pod->attempt});
    }
  }
}

// What begins now.
struct Incident {
  Reason reason = Reason::kPodFailed;
  Role role = Role::kWorker;
  std::string message;
  bool all = false;         // every pod is made again
  bool counted = false;     // against the budgets
  bool disruption = false;  // a restart that counts against nothing
  std::string then;         // what follows, for the event
};

// Who is to blame: a counted failure that is not itself an answer to another's, else any counted,
// else a disruption.
const Failure* CauseOf(const std::vector<const Failure*>& fresh) {
  const auto rank = [](const Failure& failure) {
    if (failure.disruption) return 2;
    return failure.pod->exit_code == cluster::kExitRetry ? 1 : 0;
  };
  const Failure* cause = nullptr;
  for (const Failure* failure : fresh) {
    if (cause == nullptr || rank(*failure) < rank(*cause)) cause = failure;
  }
  return cause;
}

Incident OfFailures(const std::vector<const Failure*>& fresh) {
  const Failure& cause = *CauseOf(fresh);
  Incident out{.reason = cause.disruption ? Reason::kPodDisrupted : Reason::kPodFailed,
               .role = cause.task.role,
               .message = cause.message,
               .counted = !cause.disruption,
               .disruption = cause.disruption,
               .then = "it restarts"};
  out.all = std::any_of(fresh.begin(), fresh.end(), [](const Failure* failure) {
    return failure->verdict == Verdict::kRestartAll;
  });
  if (out.all) {
    out.reason = Reason::kRestartAll;
    out.then = "all pods restart";
  }
  return out;
}

Incident OfLost(const View& view, const std::vector<TaskId>& lost) {
  std::string message = cluster::PodName(view.job.metadata.name, lost.front()) + " was deleted";
  if (lost.size() > 1) message += ", and " + std::to_string(lost.size() - 1) + " more";
  return {.reason = Reason::kPodLost,
          .role = lost.front().role,
          .message = std::move(message),
          .disruption = true,
          .then = "it is made again, and training goes on from the last checkpoint"};
}

// Whether pods of the present attempt mount what was lost: then it cannot just be made again.
bool MountsWhatWasLost(const View& view) {
  const api::Recovery& recovery = view.job.status.recovery;
  if (!view.seen.lost_child || view.seen.lost_child->attempt != recovery.attempt) return false;
  return std::any_of(view.ours.begin(), view.ours.end(), [&](const auto& entry) {
    return entry.second->attempt >= recovery.restart_all_below;
  });
}

void Begin(const View& view, const Incident& incident, Draft* draft) {
  api::Recovery& recovery = draft->next.recovery;
  ++recovery.attempt;
  if (incident.counted || incident.disruption) {
    ++recovery.incidents_by_role[incident.role];
    Remember({.at = view.stamp, .role = incident.role, .counted = incident.counted}, &recovery);
  }
  if (incident.counted) {
    ++recovery.counted;
    ++recovery.counted_by_role[incident.role];
  }
  if (incident.disruption) ++recovery.disruptions;
  if (incident.all) recovery.restart_all_below = recovery.attempt;
  draft->Set(ConditionType::kRestarting, true, incident.reason, incident.message);
  // A job that has not run yet goes on waiting for its start.
  if (HasRun(draft->next)) {
    draft->Set(ConditionType::kRunning, false, Reason::kJobRestarting, incident.message);
  }
  const bool own = incident.reason == Reason::kPodLost || incident.reason == Reason::kChildLost ||
                   incident.reason == Reason::kClusterChanged;
  draft->Event(true, own ? incident.reason : Reason::kJobRestarting,
               incident.message + ": " + incident.then);
}

// The incarnations whose loss is counted now.
void RememberIncarnations(const std::vector<const Failure*>& fresh, api::Recovery* recovery) {
  auto& known = recovery->lost_incarnations;
  for (const Failure* failure : fresh) {
    const std::string lost = LostIncarnation(*failure->pod);
    if (lost.empty() || std::find(known.begin(), known.end(), lost) != known.end()) continue;
    known.push_back(lost);
    if (known.size() > api::kMaxLost) known.erase(known.begin());
  }
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

std::optional<Pace> NextAttempt(const api::JobStatus& status, TimePoint now) {
  // The kubelet paces its own.
  std::vector<TimePoint> made;
  for (const api::Recovery::Recent& recent : status.recovery.recent) {
    if (!recent.in_place) made.push_back(recent.at);
  }
  if (made.empty()) return std::nullopt;
  const TimePoint last = made.back();
  // By an operator whose clock is ahead of this one's: how long ago that was cannot be told.
  if (last > now) return std::nullopt;
  const auto before = std::count_if(made.begin(), made.end() - 1, [&](TimePoint at) {
    return at > last - Duration(kPaceWindow);
  });
  if (before == 0) return std::nullopt;
  const auto delay = std::min<int64_t>(kLongestDelay.count(),
                                       kFirstDelay.count() << std::min<int64_t>(before - 1, 10));
  return Pace{.last = last, .due = last + Duration(seconds(delay))};
}

void OpenIncident(const View& view, const std::vector<Failure>& failures, bool may_make,
                  Draft* draft) {
  api::Recovery& recovery = draft->next.recovery;
  const api::Recovery& before = view.job.status.recovery;
  const bool open = view.Is(ConditionType::kRestarting);
  std::vector<const Failure*> fresh;
  std::vector<const Failure*> late;  // for the loss of an incarnation that was counted already
  for (const Failure& failure : failures) {
    if (failure.verdict == Verdict::kFail) {
      RememberMemory(failures, &recovery);
      return draft->Fail(Reason::kPodFailed, failure.message);
    }
    if (failure.verdict == Verdict::kIgnore) continue;
    const bool joined = open && failure.pod->attempt < before.attempt;
    // An open incident of single pods does not cover a rule that wants all of them; one of all pods
    // would have kept this pod from being judged.
    if (joined && failure.verdict != Verdict::kRestartAll) continue;
    const auto& known = before.lost_incarnations;
    const std::string lost = LostIncarnation(*failure.pod);
    const bool counted =
        !lost.empty() && std::find(known.begin(), known.end(), lost) != known.end();
    (counted ? late : fresh).push_back(&failure);
  }
  RememberMemory(failures, &recovery);
  const std::vector<TaskId> lost = Lost(view);
  const PodSeen* former = may_make ? KnowsAFormerCluster(view) : nullptr;
  const bool lost_child = may_make && MountsWhatWasLost(view);
  if (!fresh.empty() || !late.empty() || !lost.empty() || former != nullptr || lost_child) {
    Incident incident;
    if (!fresh.empty()) {
      incident = OfFailures(fresh);
      RememberIncarnations(fresh, &recovery);
    } else if (!lost.empty()) {
      incident = OfLost(view, lost);
    } else if (!late.empty()) {
      incident = OfFailures(late);
      incident.counted = incident.disruption = false;
    } else if (lost_child) {
      incident = {.reason = Reason::kChildLost,
                  .message = view.seen.lost_child->what + " was deleted"};
    } else {
      incident = {.reason = Reason::kClusterChanged, .message = "the set of processes changed"};
    }
    if (lost_child || former != nullptr) {
      incident.all = true;
      incident.then = lost_child ? "it is made again, and all pods restart together"
                                 : "all pods restart together, so that all know the same";
    }
    Begin(view, incident, draft);
  }
  CheckBudgets(view, fresh.empty() ? std::string() : fresh.front()->message, draft);
}

void ReplacePods(const View& view, const std::vector<Failure>& failures, Draft* draft) {
  std::set<TaskId> going;
  for (const Failure& failure : failures) {
    if (failure.verdict == Verdict::kIgnore) continue;
    going.insert(failure.task);
    Remove(view, *failure.pod, failure.message, draft);
  }
  const int32_t stale_below = draft->next.recovery.restart_all_below;
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task) || pod->delete_requested || going.contains(task) ||
        pod->attempt >= stale_below) {
      continue;
    }
    Remove(view, *pod, "all pods restart", draft);
  }
}

void CloseIncident(const View& view, const std::vector<Failure>& failures, Draft* draft) {
  // One that began now has pods to delete, or to make.
  if (!view.Is(ConditionType::kRestarting) ||
      draft->next.recovery.attempt != view.job.status.recovery.attempt) {
    return;
  }
  const int32_t stale_below = draft->next.recovery.restart_all_below;
  std::map<TaskId, const Failure*> judged;
  for (const Failure& failure : failures) judged[failure.task] = &failure;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      if (pod == nullptr || pod->attempt < stale_below) return;
      // A pod that is still to be deleted may seem to run: its node is dead.
      const auto failure = judged.find({role, i});
      const bool ignored = failure != judged.end() && failure->second->verdict == Verdict::kIgnore;
      if (failure != judged.end() && !ignored) return;
      if (!ignored && !Healthy(*pod)) return;
    }
  }
  const Duration spent =
      view.now - draft->next.conditions[ConditionType::kRestarting].last_transition;
  // Before the first run this is time that it waits. A clock that went back since then says
  // nothing.
  if (HasRun(draft->next)) {
    draft->next.goodput.restarting_seconds +=
        std::max(0.0, std::round(std::chrono::duration<double>(spent).count()));
  }
  draft->Set(ConditionType::kRestarting, false, Reason::kJobRunning, "all pods run again");
}

}  // namespace meshtrain::reconcile
