#include "operator/reconcile/reconcile.h"

#include <algorithm>

#include "operator/api/program.h"
#include "operator/api/rules.h"
#include "operator/reconcile/children.h"
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {

View::View(const api::TrainingJob& the_job, const Observed& the_seen, TimePoint the_now)
    : job(the_job),
      seen(the_seen),
      now(the_now),
      stamp(std::chrono::floor<std::chrono::seconds>(the_now)) {
  // Lists come in any order; where several pods would claim one place, the name decides, and names
  // are unique.
  for (const PodSeen& pod : seen.pods) {
    const bool named = pod.task && pod.name == cluster::PodName(job.metadata.name, *pod.task);
    const bool known = !job.metadata.uid.empty();
    const bool controlled = known && pod.controller_uid == job.metadata.uid;
    // A former job's pod has another attempt, token and cluster, and its end is none of this job.
    const bool made_for_us = known && pod.job_uid == job.metadata.uid;
    if (controlled && !pod.matches_selector) {
      if (!pod.delete_requested) strays.push_back(&pod);
      foreign.emplace(pod.name, &pod);
    } else if (controlled && named) {
      ours.emplace(*pod.task, &pod);
    } else if (pod.controller_uid.empty() && made_for_us && pod.matches_selector && named &&
               !pod.delete_requested) {
      orphans.emplace(*pod.task, &pod);
    } else {
      foreign.emplace(pod.name, &pod);
    }
  }
  std::sort(strays.begin(), strays.end(),
            [](const PodSeen* a, const PodSeen* b) { return a->name < b->name; });
}

bool View::Wanted(TaskId task) const {
  return task.index >= 0 && task.index < api::Replicas(job.spec, task.role);
}

const PodSeen* View::Ours(TaskId task) const {
  const auto found = ours.find(task);
  return found == ours.end() ? nullptr : found->second;
}

std::string Tidy(std::string_view text, size_t most) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    // The table of well-formed sequences, Unicode 15, table 3-7: the second byte's range depends on
    // the first.
    size_t size = 1;
    unsigned low = 0x80, high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) size = 2;
    if (lead >= 0xe0 && lead <= 0xef) size = 3;
    if (lead >= 0xf0 && lead <= 0xf4) size = 4;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
    bool good = lead < 0x80 || (size > 1 && byte(i + 1) >= low && byte(i + 1) <= high);
    for (size_t k = 2; k < size; ++k) good = good && byte(i + k) >= 0x80 && byte(i + k) <= 0xbf;
    if (!good) size = 1;
    if (out.size() + size > most) break;
    if (!good) {
      out += '?';
    } else if (lead < 0x20 || lead == 0x7f) {
      out += ' ';
    } else {
      out += text.substr(i, size);
    }
    i += size;
  }
  return out;
}

Draft::Draft(const View& the_view) : view(the_view), next(the_view.job.status) {}

void Draft::Add(Phase phase, Write write, std::string why) {
  actions.push_back({phase, std::move(write), std::move(why)});
}

void Accept(const View& view, Draft* draft) {
  if (view.job.status.conditions.contains(ConditionType::kCreated)) return;
  draft->Set(ConditionType::kCreated, true, Reason::kJobCreated, "the job was accepted");
  draft->Event(false, Reason::kJobCreated, "the job is created");
  for (const api::FieldError& warning : api::Warnings(view.job)) {
    draft->Event(true, Reason::kManifestWarning, api::ToString(warning));
  }
  WarnOfNoQueue(view, draft);
}

void Draft::Event(bool warning, Reason reason, std::string message) {
  Add(Phase::kTell,
      RecordEvent{.warning = warning,
                  .reason = std::string(api::ReasonName(reason)),
                  .message = std::move(message)},
      "it is news");
}

void Draft::WakeAt(TimePoint when) {
  if (!wake_at || when < *wake_at) wake_at = when;
}

void Draft::Set(ConditionType type, bool status, Reason reason, std::string message) {
  api::Condition& condition = next.conditions[type];
  if (condition.status != status || condition.last_transition == TimePoint{}) {
    condition.last_transition = view.stamp;
  }
  condition.status = status;
  condition.reason = std::string(api::ReasonName(reason));
  condition.message = Tidy(message, 500);
  condition.observed_generation = view.job.metadata.generation;
}

void Draft::Wait(Reason reason, std::string message) {
  if (!waiting || reason < waiting->reason) waiting = {reason, std::move(message)};
}

void Draft::Succeed(std::string message) {
  if (finished()) return;
  next.completion_time = view.stamp;
  Event(false, Reason::kJobSucceeded, message);
  Set(ConditionType::kSucceeded, true, Reason::kJobSucceeded, std::move(message));
}

void Draft::Fail(Reason reason, std::string message) {
  if (finished()) return;
  next.completion_time = view.stamp;
  Event(true, Reason::kJobFailed, message);
  Set(ConditionType::kFailed, true, reason, std::move(message));
}

namespace {

std::string NameOf(const Write& write) {
  return std::visit(
      [](const auto& what) -> std::string {
        if constexpr (requires { what.name; }) return what.name;
        return {};
      },
      write);
}

// Why no more is done than the outcome holds.
std::string Rests(const Draft& draft) {
  if (draft.waiting && !draft.finished()) {
    return "waits: " + std::string(api::ReasonName(draft.waiting->reason)) + ": " +
           draft.waiting->message;
  }
  return "phase " + draft.next.phase + ", ready " + draft.next.ready + ": all is as it should be";
}

Outcome Finish(const PolicyObserver& after, Draft* draft) {
  Publish(draft->view, draft);
  if (after) after(Policy::kPublish, draft->next);
  // Events go with a record: without one, the same would be told again at every look.
  const bool recorded = std::any_of(
      draft->actions.begin(), draft->actions.end(),
      [](const Action& action) { return std::holds_alternative<PatchStatus>(action.write); });
  if (!recorded) {
    std::erase_if(draft->actions,
                  [](const Action& action) { return action.phase == Phase::kTell; });
  }
  Outcome out{.actions = std::move(draft->actions),
              .placements = std::move(draft->placements),
              .wake_at = draft->wake_at,
              .again = draft->again,
              .tells_later = draft->tells_later,
              .rests = Rests(*draft)};
  std::stable_sort(out.actions.begin(), out.actions.end(), [](const Action& a, const Action& b) {
    if (a.phase != b.phase) return a.phase < b.phase;
    // Pods keep the order of ranks, so that the chief is asked for first.
    if (a.phase == Phase::kCreate || a.phase == Phase::kTell) return false;
    if (a.write.index() != b.write.index()) return a.write.index() < b.write.index();
    return NameOf(a.write) < NameOf(b.write);
  });
  return out;
}

std::string Listing(const std::vector<api::FieldError>& errors) {
  std::string out = api::ToString(errors.front());
  if (errors.size() > 1) out += " (and " + std::to_string(errors.size() - 1) + " more)";
  return out;
}

// Until the job is known to be another's, or going, nothing of it is touched.
Outcome Idle(std::string why) { return {.rests = std::move(why)}; }

}  // namespace

Outcome ReconcilePolicyByPolicy(const api::TrainingJob& job, const Observed& seen, TimePoint now,
                                const PolicyObserver& after) {
  if (job.metadata.deleted) {
    return Idle("the job is being deleted; the garbage collector follows the owner references");
  }
  const std::string& manager = job.spec.run_policy.managed_by;
  if (manager == cluster::kManagedByMultiKueue) {
    return Idle("runPolicy.managedBy is " + manager);
  }

  const View view(job, seen, now);
  Draft draft(view);
  const auto did = [&](Policy policy) {
    if (after) after(policy, draft.next);
  };
  if (api::IsFinished(job.status)) {
    CleanUp(view, &draft);
    did(Policy::kCleanUp);
    return Finish(after, &draft);
  }
  auto errors = api::Validate(job);
  const bool fresh =
      !job.status.start_time && !job.status.conditions.contains(ConditionType::kRunning);
  // A program that runs was good for the operator that began it.
  if (fresh) {
    for (api::FieldError& error : api::ValidateProgram(job)) errors.push_back(std::move(error));
  }
  if (!errors.empty()) {
    if (fresh) {
      draft.Fail(Reason::kInvalidSpec, Listing(errors));
      did(Policy::kRefuseManifest);
      return Finish(after, &draft);
    }
    // Pods that train are not stopped for an edit that got past admission, nor for a stricter rule
    // of a new version. Nothing is made and nothing scaled, but what happens to them is recorded.
    draft.Wait(Reason::kInvalidSpec, Listing(errors));
    // Where it cannot be read who belongs to the job, nothing can be said of its pods either.
    const bool readable =
        std::none_of(job.problems.begin(), job.problems.end(), [](const api::FieldError& problem) {
          return problem.path.starts_with("spec.replicaSpecs");
        });
    if (!readable) {
      const bool stands = Suspend(view, /*sound=*/false, &draft);
      did(Policy::kSuspend);
      if (!stands) Deadlines(view, &draft);
      did(Policy::kDeadlines);
      return Finish(after, &draft);
    }
  }

  RecordInPlace(view, &draft);
  did(Policy::kRecordInPlace);
  ObserveProgress(view, &draft);
  did(Policy::kObserveProgress);
  const std::vector<Failure> failures = JudgeFailures(view, &draft);
  // The record of the end now, the clean-up when it is seen to be there. Nothing else was planned
  // before the end was known.
  const auto end = [&] {
    Counts(view, failures, &draft);
    did(Policy::kCounts);
    return Finish(after, &draft);
  };
  if (const auto why = Success(view, failures)) {
    draft.Succeed(*why);
    did(Policy::kSucceed);
    return end();
  }
  const bool stands = Suspend(view, errors.empty(), &draft);
  did(Policy::kSuspend);
  if (stands) {
    Counts(view, {}, &draft);
    did(Policy::kCounts);
    return Finish(after, &draft);
  }
  // Decided once, where the job begins, also for one process: it may be scaled to several later.
  // Before it is recorded each look decides alike.
  if (job.spec.security.empty() && SealedIfSeveral(job, view.seen.settings)) {
    draft.next.security = api::kMutualTls;
  }
  if (!draft.next.start_time) draft.next.start_time = view.stamp;
  Accept(view, &draft);
  TellRefusal(view, &draft);
  did(Policy::kAccept);

  OpenIncident(view, failures, errors.empty(), &draft);
  did(Policy::kOpenIncident);
  if (!draft.finished()) Deadlines(view, &draft);
  did(Policy::kDeadlines);
  if (draft.finished()) return end();

  ReplacePods(view, failures, &draft);
  CloseIncident(view, failures, &draft);
  did(Policy::kCloseIncident);
  if (errors.empty()) {
    const bool may_create = Gang(view, &draft);
    Children(view, may_create, &draft);
  }
  did(Policy::kChildren);
  Counts(view, failures, &draft);
  did(Policy::kCounts);
  Tell(view, &draft);
  did(Policy::kTell);
  WatchForStall(view, &draft);
  did(Policy::kWatchForStall);
  WatchForStraggler(view, &draft);
  did(Policy::kWatchForStraggler);
  return Finish(after, &draft);
}

Outcome Reconcile(const api::TrainingJob& job, const Observed& seen, TimePoint now) {
  return ReconcilePolicyByPolicy(job, seen, now, {});
}

namespace {

struct Printer {
  std::string operator()(const CreateService& w) const { return "create service " + w.name; }
  std::string operator()(const DeleteService& w) const { return "delete service " + w.name; }
  std::string operator()(const CreateConfigMap& w) const {
    return (w.probe ? "probe config map " : "create config map ") + w.name;
  }
  std::string operator()(const CreateSecret& w) const {
    return (w.probe ? "probe secret " : "create secret ") + w.name;
  }
  std::string operator()(const CreateClaim& w) const { return "create claim " + w.name; }
  std::string operator()(const CreateNetworkPolicy& w) const {
    return "create network policy " + w.name;
  }
  std::string operator()(const CreatePodGroup& w) const { return "create pod group " + w.name; }
  std::string operator()(const PatchPodGroup& w) const { return "patch pod group " + w.name; }
  std::string operator()(const DeletePodGroup& w) const { return "delete pod group " + w.name; }
  std::string operator()(const CreateWorkload& w) const { return "create workload " + w.name; }
  std::string operator()(const PatchWorkload& w) const {
    return (w.status ? "patch status of workload " : "patch workload ") + w.name;
  }
  std::string operator()(const DeleteWorkload& w) const { return "delete workload " + w.name; }
  std::string operator()(const CreatePod& w) const {
    return "create pod " + w.name + " (attempt " + std::to_string(w.attempt) + ")";
  }
  std::string operator()(const DeletePod& w) const {
    return (w.grace_seconds == 0 ? "force-delete pod " : "delete pod ") + w.name;
  }
  std::string operator()(const AdoptPod& w) const { return "adopt pod " + w.name; }
  std::string operator()(const ReleasePod& w) const { return "release pod " + w.name; }
  std::string operator()(const PatchStatus& w) const {
    std::string out = "patch status " + w.status.phase;
    for (const auto& [type, condition] : w.status.conditions) {
      if (condition.status) {
        out += " " + std::string(api::ConditionName(type)) + "=" + condition.reason;
      }
    }
    return out;
  }
  std::string operator()(const DeleteJob&) const { return "delete job"; }
  std::string operator()(const RecordEvent& w) const {
    return (w.warning ? "warn " : "tell ") + w.reason + ": " + w.message;
  }
};

}  // namespace

bool AsksForMounts(const Outcome& outcome) {
  return std::any_of(outcome.actions.begin(), outcome.actions.end(), [](const Action& action) {
    return std::holds_alternative<CreateSecret>(action.write) ||
           std::holds_alternative<CreateClaim>(action.write) ||
           std::holds_alternative<CreateConfigMap>(action.write);
  });
}

std::string ToString(const Write& write) { return std::visit(Printer{}, write); }

std::string ToString(const Action& action) {
  return ToString(action.write) + (action.why.empty() ? "" : ": " + action.why);
}

std::string ToString(const Outcome& outcome) {
  std::string out;
  for (const Action& action : outcome.actions) out += ToString(action) + "\n";
  if (outcome.again) out += "again\n";
  return out;
}

}  // namespace meshtrain::reconcile
