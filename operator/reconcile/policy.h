// What the policy files share. Internal to operator/reconcile: others include reconcile.h and
// children.h.
//
// How restarts survive crashes: `status.recovery.attempt` grows with each incident, the status is
// written before anything is deleted, and each pod carries the attempt it was made in. While the
// condition Restarting is true, a failed pod of an earlier attempt belongs to the incident that is
// open (so a hundred ranks that leave with 138 count once, and an operator that comes back deletes
// them without counting again); one of the present attempt opens a new incident.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/reason.h"
#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "operator/reconcile/reconcile.h"

namespace meshtrain::reconcile {

using api::ConditionType;
using api::Reason;
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
  std::map<TaskId, const PodSeen*>
      orphans;                         // made for this job, and without a controller: to adopt
  std::vector<const PodSeen*> strays;  // ours by controller, but our labels are gone: to release
  std::map<std::string, const PodSeen*> foreign;  // under a name that we want

  bool Wanted(TaskId task) const;
  const PodSeen* Ours(TaskId task) const;
  bool Is(ConditionType type) const { return api::IsTrue(job.status, type); }
};

// The next status and what is to be done, as it grows. No two policies of Reconcile set the same
// part of the status, so that their order decides nothing; what is an exception, and why, stands in
// tests/operator/reconcile/policies_test.cc, which fails where a policy sets a part that is
// another's.
struct Draft {
  explicit Draft(const View& view);

  const View& view;
  api::JobStatus next;
  std::vector<Action> actions;
  Placements placements;
  std::optional<TimePoint> wake_at;
  bool again = false;
  bool tells_later = false;

  struct Waiting {
    Reason reason;
    std::string message;
  };
  std::optional<Waiting> waiting;  // the most telling of those given

  // `why` is for the log.
  void Add(Phase phase, Write write, std::string why);
  void Event(bool warning, Reason reason, std::string message);
  void WakeAt(TimePoint when);
  // `last_transition` moves only with `status`.
  void Set(ConditionType type, bool status, Reason reason, std::string message);
  // Of several the one whose reason stands first in the enum is told; of equal ones the first.
  void Wait(Reason reason, std::string message);
  void Succeed(std::string message);
  void Fail(Reason reason, std::string message);
  bool finished() const { return api::IsFinished(next); }
};

// What Reconcile goes through, in this order; not each of them in every look.
enum class Policy : uint8_t {
  kCleanUp,
  kRefuseManifest,
  kRecordInPlace,
  kObserveProgress,
  kSucceed,
  kSuspend,
  kAccept,
  kOpenIncident,
  kDeadlines,
  kCloseIncident,  // and deletes what is made again
  kChildren,       // the gang among them
  kCounts,
  kTell,
  kWatchForStall,
  kWatchForStraggler,
  kPublish,
};
// Told after each policy what the next status is by then; empty outside tests.
using PolicyObserver = std::function<void(Policy, const api::JobStatus&)>;
// reconcile.cc: Reconcile, and what each policy did.
Outcome ReconcilePolicyByPolicy(const api::TrainingJob& job, const Observed& seen, TimePoint now,
                                const PolicyObserver& after);

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

// policies/failure.cc: what to do with each pod of `ours` that failed, in the order of tasks.
std::vector<Failure> JudgeFailures(const View& view, Draft* draft);
bool IsDisruption(const PodSeen& pod);
// policies/dead_node.cc: whether the processes of that pod are gone for certain, or the user said
// that this may be taken for granted (deadNodeSeconds). May ask to be woken, and says what it waits
// for.
bool OnDeadNode(const View& view, const PodSeen& pod, Draft* draft);
// Its deletion by force was asked for already.
bool Forced(const PodSeen& pod);
// Asks for the deletion of a pod, by force where its node is dead; nothing where that was asked for
// already.
void Remove(const View& view, const PodSeen& pod, std::string why, Draft* draft);

// policies/success.cc: whether the job has succeeded, and why.
std::optional<std::string> Success(const View& view, const std::vector<Failure>& failures);
bool EndedWell(const PodSeen& pod);

// policies/restart.cc: opens or joins an incident; fails the job past its budget.
// `may_make`: pods may be made, as they may not of a manifest that breaks a rule.
void OpenIncident(const View& view, const std::vector<Failure>& failures, bool may_make,
                  Draft* draft);
// Deletes pods to be made again. Only of a job that goes on.
void ReplacePods(const View& view, const std::vector<Failure>& failures, Draft* draft);
// Ends the incident when everybody is back.
void CloseIncident(const View& view, const std::vector<Failure>& failures, Draft* draft);
// When the next pods may be made, by the pace of the last incidents; nothing: at once.
struct Pace {
  TimePoint last;  // incident
  TimePoint due;
};
std::optional<Pace> NextAttempt(const api::JobStatus& status, TimePoint now);
// Notes a restart; past kMaxRecent the least wanted goes.
void Remember(api::Recovery::Recent entry, api::Recovery* recovery);

// cluster.cc: a pod that runs, or will, and knows another cluster than pods that are now to be made
// (or others that now go); null: none. All have to restart then.
const PodSeen* KnowsAFormerCluster(const View& view);
// A pod that can still run although all restart: it is of an earlier attempt than all are to be of,
// or knows another cluster than the wanted one. None is made before it has ended.
const PodSeen* MayRunStill(const View& view, int32_t restart_all_below, const std::string& cluster);

// policies/in_place.cc: what pods tell of containers restarted in place, into draft->next.recovery.
void RecordInPlace(const View& view, Draft* draft);
// Of a role, or of the job.
int32_t RestartsInPlace(const api::Recovery& recovery, std::optional<Role> role);
// The incarnation that a process which left with 138 names as lost; empty: it names none.
std::string LostIncarnation(const PodSeen& pod);

// policies/deadlines.cc
void Deadlines(const View& view, Draft* draft);
// reconcile.cc: a job that is new is accepted, with an event and what is to be warned of.
void Accept(const View& view, Draft* draft);
// policies/suspend.cc: true when the job is to stand still, for its user or for its queue.
// `sound`: the manifest breaks no rule.
bool Suspend(const View& view, bool sound, Draft* draft);
// Deletes all pods and the pod group and forgets the start time. `message` is the condition's,
// `news` the event's.
void StandStill(const View& view, Reason reason, const std::string& message,
                const std::string& news, Draft* draft);
// policies/queue.cc: why the job is to stand still for its queue; nothing: it may run.
std::optional<std::string> HeldByQueue(const View& view, bool sound, Draft* draft);
// The job stands still for another cause: its place goes once its pods are gone.
void LeaveQueue(const View& view, Draft* draft);
// The job has ended: its quota is free.
void EndInQueue(const View& view, Draft* draft);
// The job names a queue, and nobody holds it back for that.
void WarnOfNoQueue(const View& view, Draft* draft);
// policies/cleanup.cc: pods and the job itself after the end.
void CleanUp(const View& view, Draft* draft);
void DeleteOurs(const View& view, Draft* draft, const char* why, bool (*which)(const PodSeen&));
// policies/gang.cc: true when pods may be made.
bool Gang(const View& view, Draft* draft);
void DeleteGang(const View& view, const char* why, Draft* draft);
// policies/refusal.cc: says what was refused, with the path in the job's manifest.
void TellRefusal(const View& view, Draft* draft);
// Whether objects may be asked for now; after a refusal only when its time has come.
bool MayAsk(const View& view, Draft* draft);
// policies/scale.cc: services and pods that are missing or too many, adoption and release.
void Children(const View& view, bool may_create, Draft* draft);
// progress.cc
void ObserveProgress(const View& view, Draft* draft);
void WatchForStall(const View& view, Draft* draft);
void WatchForStraggler(const View& view, Draft* draft);
// reconcile.cc: at most `most` bytes of well-formed UTF-8 in one line: other bytes become '?',
// control characters blanks. What a program said goes through it, since a status that JSON changes
// on its way would be written again for ever.
std::string Tidy(std::string_view text, size_t most);
// waits.cc: why a pod that is not going does not start, or does not run; nothing: all is well.
struct PodTrouble {
  Reason reason;
  std::string message;
};
std::optional<PodTrouble> TroubleOf(const View& view, const PodSeen& pod);
// From when on a pod that has its node and does not start is slow; nothing: it is not on that way.
std::optional<TimePoint> SlowFrom(const PodSeen& pod);
// advice.cc: what the user can do about what holds the job up, in one line; empty: nothing does.
std::string WhatToDo(const api::TrainingJob& job, const api::JobStatus& status);
// policies/status.cc: whether the job has run since it was started, or resumed.
bool HasRun(const api::JobStatus& status);
// policies/status.cc: seconds since the start, or the resumption, where the job has not run since;
// else 0.
double OngoingWait(const api::JobStatus& status, TimePoint now);
// The wait ends, and its time goes on record. Before Running is set, to whatever.
void EndWait(Draft* draft);
// policies/status.cc: counts, conditions that only tell, and the PatchStatus itself where there is
// news.
void Counts(const View& view, const std::vector<Failure>& failures, Draft* draft);
void Tell(const View& view, Draft* draft);
// Whether every pod is there and the leader, or without a chief some worker, runs.
bool Runs(const View& view, const Draft& draft);
void Publish(const View& view, Draft* draft);
// status_size.cc: keeps a status within kMaxStatusBytes by cutting what only people read: first the
// last lines of `worst`, then messages, then paths. Cut once it stays as it is.
void FitStatus(api::JobStatus* status);

}  // namespace meshtrain::reconcile
