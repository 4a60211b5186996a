// What the policy files share. Internal to operator/reconcile: others include reconcile.h and
// children.h.
//
// How restarts survive crashes: `status.recovery.attempt` grows with each incident, the status is
// written before anything is deleted, and each pod carries the attempt it was made in. While the
// condition Restarting is true, a failed pod of an earlier attempt belongs to the incident that is
// open (so a hundred ranks that leave with 138 count once, and an operator that comes back deletes
// them without counting again); one of the present attempt opens a new incident.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "operator/reconcile/reconcile.h"

namespace meshtrain::reconcile {

using api::ConditionType;
using cluster::Role;
using cluster::TaskId;

// The world, sorted out. Borrows its arguments.
struct View {
  View(const api::TrainingJob& job, const Observed& seen, TimePoint now);

  const api::TrainingJob& job;
  const Observed& seen;
  TimePoint now;
  TimePoint stamp;  // now in whole seconds, as times in a status are

  std::map<TaskId, const PodSeen*> ours;  // controlled by this job, under the names that it gives
  std::map<TaskId, const PodSeen*> orphans;  // to adopt
  std::vector<const PodSeen*> strays;  // ours by controller, but our labels are gone: to release
  std::map<std::string, const PodSeen*> foreign;  // under a name that we want

  bool Wanted(TaskId task) const;
  const PodSeen* Ours(TaskId task) const;
  bool Is(ConditionType type) const { return api::IsTrue(job.status, type); }
};

// Why Running is not true while a job is suspended, and until it runs again after that.
inline constexpr std::string_view kJobSuspended = "JobSuspended";

// The next status and what is to be done, as it grows.
struct Draft {
  explicit Draft(const View& view);

  const View& view;
  api::JobStatus next;
  std::vector<Action> actions;
  std::optional<TimePoint> wake_at;
  bool again = false;
  std::string waiting_reason;  // the first that was given
  std::string waiting_message;

  void Add(Phase phase, Write write) { actions.push_back({phase, std::move(write)}); }
  void Event(bool warning, std::string_view reason, std::string message);
  void WakeAt(TimePoint when);
  // `last_transition` moves only with `status`.
  void Set(ConditionType type, bool status, std::string_view reason, std::string message);
  void Wait(std::string_view reason, std::string message);
  void Succeed(std::string message);
  void Fail(std::string_view reason, std::string message);
  bool finished() const { return api::IsFinished(next); }
};

// A pod that ended by itself or by its node, and was not being deleted.
enum class Verdict : uint8_t { kIgnore, kRestart, kRestartAll, kFail };
struct Failure {
  const PodSeen* pod = nullptr;
  TaskId task;
  Verdict verdict = Verdict::kRestart;
  bool disruption = false;  // never counts
  bool out_of_memory = false;
  bool force = false;   // its node will not answer
  std::string message;  // "mnist-worker-1 ended with exit code 1 (Error)"
};

// failure.cc: what to do with each pod of `ours` that failed, in the order of tasks.
std::vector<Failure> JudgeFailures(const View& view, Draft* draft);
bool IsDisruption(const PodSeen& pod);
// The pod sits on a node that is gone, or was not heard of for deadNodeSeconds. May ask to be
// woken.
bool OnDeadNode(const View& view, const PodSeen& pod, Draft* draft);

// success.cc: whether the job has succeeded, and why.
std::optional<std::string> Success(const View& view, const std::vector<Failure>& failures);
bool EndedWell(const PodSeen& pod);

// restart.cc: opens, joins and closes incidents; deletes pods to be made again; fails the job past
// its budget.
void Restart(const View& view, const std::vector<Failure>& failures, Draft* draft);
// When the next pods may be made, by the pace of the last incidents; nothing: at once.
struct Pace {
  TimePoint last;  // incident
  TimePoint due;
};
std::optional<Pace> NextAttempt(const api::JobStatus& status);
// Notes a restart; past kMaxRecent the least wanted goes.
void Remember(api::Recovery::Recent entry, api::Recovery* recovery);

// in_place.cc: what pods tell of containers restarted in place, into draft->next.recovery.
void RecordInPlace(const View& view, Draft* draft);
// Of a role, or of the job.
int32_t RestartsInPlace(const api::Recovery& recovery, std::optional<Role> role);

// deadlines.cc
void Deadlines(const View& view, Draft* draft);
// suspend.cc: true when the job is to stand still.
bool Suspend(const View& view, Draft* draft);
// cleanup.cc: pods and the job itself after the end.
void CleanUp(const View& view, Draft* draft);
void DeleteOurs(const View& view, Draft* draft, const char* why, bool (*which)(const PodSeen&));
// gang.cc: true when pods may be made.
bool Gang(const View& view, Draft* draft);
void DeleteGang(const View& view, Draft* draft);
// scale.cc: services and pods that are missing or too many, adoption and release.
void Children(const View& view, bool may_create, Draft* draft);
// progress.cc
void ObserveProgress(const View& view, Draft* draft);
void WatchForStall(const View& view, Draft* draft);
// reconcile.cc: at most `most` bytes of well-formed UTF-8 in one line: other bytes become '?',
// control characters blanks. What a program said goes through it, since a status that JSON changes
// on its way would be written again for ever.
std::string Tidy(std::string_view text, size_t most);
// status.cc: whether the job has run since it was started, or resumed.
bool HasRun(const api::JobStatus& status);
// status.cc: seconds since the start, or the resumption, where the job has not run since; else 0.
double OngoingWait(const api::JobStatus& status, TimePoint now);
// The wait ends, and its time goes on record. Before Running is set, to whatever.
void EndWait(Draft* draft);
// status.cc: counts, conditions that only tell, and the PatchStatus itself where there is news.
void Counts(const View& view, const std::vector<Failure>& failures, Draft* draft);
void Tell(const View& view, Draft* draft);
void Publish(const View& view, Draft* draft);

}  // namespace meshtrain::reconcile
