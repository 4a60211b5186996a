// Observed pods -> counts and conditions; the write itself where there is news.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "operator/api/phase.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/policy.h"
#include "operator/reconcile/progress.h"
#include "runtime/base/text.h"

namespace meshtrain::reconcile {
namespace {

using std::chrono::seconds;

// A job's status is written at most so often, unless a condition changes.
constexpr seconds kQuietTime{5};
constexpr size_t kLongestLine = 200;

std::string PhaseWord(const api::JobStatus& status) {
  for (const ConditionType type : api::kPhases) {
    if (!api::IsTrue(status, type)) continue;
    const bool queued = type == ConditionType::kSuspended &&
                        status.conditions.at(type).reason == api::ReasonName(Reason::kQueued);
    return queued ? api::kQueued : std::string(api::ConditionName(type));
  }
  return api::kPending;
}

// A pod of the job as it is now: not one that goes, nor one from before a restart of all.
bool IsCurrent(const PodSeen* pod, const Draft& draft) {
  return pod != nullptr && !pod->delete_requested &&
         pod->attempt >= draft.next.recovery.restart_all_below;
}

// At most kMaxWorst pods, each once, however many are in trouble.
class WorstList {
 public:
  bool full() const { return list_.size() >= api::kMaxWorst; }
  bool Has(const std::string& pod) const {
    return std::any_of(list_.begin(), list_.end(),
                       [&](const api::Trouble& trouble) { return trouble.pod == pod; });
  }
  void Add(api::Trouble trouble) { list_.push_back(std::move(trouble)); }
  std::vector<api::Trouble> Take() { return std::move(list_); }

 private:
  std::vector<api::Trouble> list_;
};

void ListWorst(const View& view, const std::vector<Failure>& failures, Draft* draft) {
  WorstList worst;
  for (const Failure& failure : failures) {
    if (worst.full()) break;
    const PodSeen& pod = *failure.pod;
    worst.Add({.pod = pod.name,
               .exit_code = pod.exit_code,
               .reason = Tidy(!pod.reason.empty() ? pod.reason : pod.exit_reason, 128),
               .last_line = LastLine(pod)});
  }
  for (const auto& [task, pod] : view.ours) {
    if (worst.full()) break;
    const auto trouble = TroubleOf(view, *pod);
    if (!trouble || worst.Has(pod->name)) continue;
    worst.Add({.pod = pod->name,
               .exit_code = pod->last_exit_code,
               .reason = pod->waiting_reason.empty() ? std::string(api::ReasonName(trouble->reason))
                                                     : Tidy(pod->waiting_reason, 128),
               .last_line = trouble->reason == Reason::kCrashLoop && !LastLine(*pod).empty()
                                ? LastLine(*pod)
                                : Tidy(pod->waiting_message, kLongestLine)});
  }
  // Pods that failed before keep their place: their pods are gone, and this is all that is left of
  // them.
  for (const api::Trouble& trouble : view.job.status.worst) {
    if (worst.full()) break;
    if (trouble.exit_code && !worst.Has(trouble.pod)) worst.Add(trouble);
  }
  draft->next.worst = worst.Take();
}

// Without what the kubelet did: a thousand containers that it restarts are no thousand writes.
api::Recovery Decisions(api::Recovery recovery) {
  recovery.in_place = {};
  recovery.in_place_by_role.clear();
  std::erase_if(recovery.recent, [](const auto& recent) { return recent.in_place; });
  return recovery;
}

bool SameButForTelling(const api::JobStatus& a, const api::JobStatus& b) {
  // What must be on record before anything else happens, and what people wait for.
  if (a.conditions.size() != b.conditions.size()) return false;
  for (const auto& [type, condition] : a.conditions) {
    const auto other = b.conditions.find(type);
    if (other == b.conditions.end() || other->second.status != condition.status ||
        other->second.reason != condition.reason) {
      return false;
    }
  }
  if (Decisions(a.recovery) != Decisions(b.recovery) || a.start_time != b.start_time ||
      a.completion_time != b.completion_time) {
    return false;
  }
  // Pods beyond the recorded number are not missed when they vanish: a change of it matters while
  // the job runs.
  if (!api::IsTrue(a, ConditionType::kRunning)) return true;
  for (const auto& [role, counts] : a.replica_statuses) {
    const auto other = b.replica_statuses.find(role);
    if (other == b.replica_statuses.end() || other->second.replicas != counts.replicas) {
      return false;
    }
  }
  return true;
}

void Account(const View& view, Draft* draft) {
  // Pods that wait for a node are not a job that runs.
  if (!draft->next.conditions.contains(ConditionType::kRunning)) return;
  api::Goodput& goodput = draft->next.goodput;
  double active = draft->next.active_seconds_before;
  const TimePoint end = draft->next.completion_time.value_or(view.now);
  if (draft->next.start_time && end > *draft->next.start_time) {
    active += std::chrono::duration<double>(end - *draft->next.start_time).count();
  }
  const double waiting = goodput.waiting_seconds + OngoingWait(draft->next, end);
  goodput.running_seconds =
      std::round(std::max(0.0, active - waiting - goodput.restarting_seconds));
  if (active < 1) return;
  const double each = draft->next.progress ? draft->next.progress->seconds_per_step.value_or(0) : 0;
  const double useful = goodput.running_seconds - static_cast<double>(goodput.lost_steps) * each;
  goodput.ratio = std::round(std::clamp(useful / active, 0.0, 1.0) * 1000) / 1000;
}

}  // namespace

std::string LastLine(const PodSeen& pod) {
  std::string_view text = Trim(pod.termination_message);
  std::string error;
  const auto said = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (said.is_object()) {  // of a program of ours, which says among others what ended it
    if (!said.contains("error") || !said["error"].is_string()) return {};
    error = said["error"].get<std::string>();
    text = Trim(error);
  }
  if (const size_t at = text.rfind('\n'); at != std::string_view::npos) text.remove_prefix(at + 1);
  text = Trim(text);
  return text.starts_with('{') ? std::string() : Tidy(text, kLongestLine);
}

bool HasRun(const api::JobStatus& status) {
  const auto running = status.conditions.find(ConditionType::kRunning);
  return running != status.conditions.end() &&
         (running->second.status ||
          (running->second.reason != api::ReasonName(Reason::kJobSuspended) &&
           running->second.reason != api::ReasonName(Reason::kQueued)));
}

double OngoingWait(const api::JobStatus& status, TimePoint now) {
  if (!status.start_time || now <= *status.start_time) return 0;
  return HasRun(status) ? 0 : std::chrono::duration<double>(now - *status.start_time).count();
}

void EndWait(Draft* draft) {
  draft->next.goodput.waiting_seconds += std::round(OngoingWait(draft->next, draft->view.now));
}

void Counts(const View& view, const std::vector<Failure>& failures, Draft* draft) {
  std::map<Role, api::ReplicaStatus> counts;
  int64_t ready = 0;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    api::ReplicaStatus& count = counts[role];
    for (auto at = view.ours.lower_bound({role, 0});
         at != view.ours.end() && at->first.role == role; ++at) {
      if (!view.Wanted(at->first) || at->second->delete_requested) continue;
      ++count.replicas;
      if (at->second->phase == PodPhase::kRunning) ++count.active;
      if (at->second->phase == PodPhase::kSucceeded) ++count.succeeded;
      if (at->second->phase == PodPhase::kFailed) ++count.failed;
    }
    ready += count.active + count.succeeded;
    if (api::IsTrue(draft->next, ConditionType::kSucceeded)) {
      // What still runs then is ended with the job.
      count.succeeded += std::exchange(count.active, 0);
    }
    const auto& incidents = draft->next.recovery.incidents_by_role;
    const auto found = incidents.find(role);
    count.restarts = (found == incidents.end() ? 0 : found->second) +
                     RestartsInPlace(draft->next.recovery, role);
  }
  draft->next.replica_statuses = std::move(counts);
  draft->next.ready =
      std::to_string(ready) + "/" + std::to_string(api::TotalReplicas(view.job.spec));
  int32_t incidents = 0;
  for (const auto& [role, count] : draft->next.recovery.incidents_by_role) incidents += count;
  draft->next.restarts = incidents + RestartsInPlace(draft->next.recovery, std::nullopt);
  ListWorst(view, failures, draft);
  if (!draft->finished()) return;
  for (const auto& [task, pod] : view.ours) {
    auto& newest = draft->next.recovery.newest_pod;
    if (!newest || pod->created > *newest) newest = pod->created;
  }
}

// Running, as TFJob has it: the chief runs, or without one some worker; but only once every pod is
// there, since a job that lacks a pod for want of quota does not run.
bool Runs(const View& view, const Draft& draft) {
  bool leads = false;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      if (!IsCurrent(pod, draft)) return false;
      const bool up = pod->phase == PodPhase::kRunning || pod->phase == PodPhase::kSucceeded;
      if (up && role == api::Leader(view.job.spec).role) leads = true;
    }
  }
  return leads;
}

// Running stays until a restart, a suspension or the end.
void Tell(const View& view, Draft* draft) {
  const bool restarting = api::IsTrue(draft->next, ConditionType::kRestarting);
  std::optional<PodTrouble> troubled;
  int more = 0;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const PodSeen* pod = view.Ours({role, i});
      if (!IsCurrent(pod, *draft)) continue;
      if (auto trouble = TroubleOf(view, *pod)) {
        ++more;
        if (!troubled || trouble->reason < troubled->reason) troubled = std::move(trouble);
      }
      if (const auto slow = SlowFrom(*pod); slow && view.now < *slow) draft->WakeAt(*slow);
    }
  }
  if (!restarting && !view.Is(ConditionType::kRunning) && Runs(view, *draft)) {
    EndWait(draft);
    draft->Set(ConditionType::kRunning, true, Reason::kJobRunning, "the job runs");
    draft->Event(false, Reason::kJobRunning, "the job runs");
  }
  if (troubled) {
    if (more > 1) troubled->message += " (and " + std::to_string(more - 1) + " more)";
    draft->Wait(troubled->reason, std::move(troubled->message));
  }
}

void Publish(const View& view, Draft* draft) {
  api::JobStatus& next = draft->next;
  const api::JobStatus& before = view.job.status;
  if (draft->waiting && !draft->finished()) {
    const auto& [reason, message] = *draft->waiting;
    draft->Set(ConditionType::kWaiting, true, reason, message);
    const auto told = before.conditions.find(ConditionType::kWaiting);
    const bool news = told == before.conditions.end() || !told->second.status ||
                      told->second.reason != api::ReasonName(reason);
    if (news) draft->Event(true, reason, message);
  } else if (view.Is(ConditionType::kWaiting)) {
    draft->Set(ConditionType::kWaiting, false, Reason::kNotWaiting, "");
  }
  if (draft->finished()) {
    for (const ConditionType type :
         {ConditionType::kRunning, ConditionType::kRestarting, ConditionType::kStalled,
          ConditionType::kStraggling, ConditionType::kSuspended}) {
      if (api::IsTrue(next, type)) {
        draft->Set(type, false, Reason::kJobFinished, "the job has ended");
      }
    }
  }
  next.phase = PhaseWord(next);
  next.label_selector = LabelSelector(view.job);
  next.observed_generation = view.job.metadata.generation;
  next.what_to_do = WhatToDo(view.job, next);
  FitStatus(&next);

  if (next == before) return;
  // What a pod tells of its restarts is on record before the pod goes.
  const bool forgets =
      next.recovery != before.recovery &&
      std::any_of(draft->actions.begin(), draft->actions.end(), [](const Action& action) {
        return std::holds_alternative<DeletePod>(action.write);
      });
  const bool quiet = !forgets && SameButForTelling(next, before);
  // A time that lies ahead is of an operator with another clock.
  if (quiet && before.last_reconcile_time && *before.last_reconcile_time <= view.now) {
    const TimePoint due = *before.last_reconcile_time + Duration(kQuietTime);
    if (view.now < due) {
      draft->WakeAt(due);
      draft->tells_later = true;
      return;
    }
  }
  Account(view, draft);
  next.last_reconcile_time = view.stamp;
  // The first write tells of pods that were made; every later one comes before what it decides.
  const bool first = !before.conditions.contains(ConditionType::kCreated) && !draft->finished() &&
                     !view.seen.refused && next.recovery == before.recovery &&
                     !api::IsTrue(next, ConditionType::kSuspended);
  draft->Add(first ? Phase::kReport : Phase::kDecide,
             PatchStatus{.status = next, .resource_version = view.job.metadata.resource_version},
             first   ? "the job is new"
             : quiet ? "counts or progress moved"
                     : "what holds changed");
}

}  // namespace meshtrain::reconcile
