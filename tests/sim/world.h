// A seeded world around operator/reconcile: an API server with resource versions and a garbage
// collector (server.cc), kubelets and nodes (kubelet.cc), a user (history.cc), and operator
// processes whose caches lag (process.cc). Virtual time, one thread; the same seed gives the same
// history.
//
// What the operator is subjected to (each fault is counted): watch events late, dropped until the
// next list, doubled, and out of order between objects; writes answered 409, 429, 5xx or not at all
// though they were done; the process dying before or after any write; another process taking over;
// requests of a dead process arriving late; nodes that die, vanish or come back; pods evicted,
// drained, killed; finalizers; quota; a second writer of the job; foreign objects, those of a
// former job of the same name, and a token or a claim that somebody deletes; a job that is deleted
// and made again while its pods are dying; an etcd that is restored to an older revision. Where the
// seed says so the API server, each node and each process of the operator have clocks up to an hour
// apart.
//
// What must hold, at every write and at the end: invariants.cc.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/check.h"

namespace meshtrain::sim {

using cluster::TaskId;

// The operator's decision; Reconcile, or one that a test has spoilt.
using Decide = std::function<reconcile::Outcome(const api::TrainingJob& job,
                                                const reconcile::Observed& seen, TimePoint now)>;

// Which faults may happen, and how often (per chance, 0..1).
struct Faults {
  double write = 0;           // per write: refused, unanswered, or the process dies around it
  double watch = 0;           // per event and process
  double chaos = 0;           // per second: nodes, evictions, the user, a second writer
  double pod = 0;             // that a process ends with an error
  int crash_after_write = 0;  // exactly this write (from 1), else none
  int unanswered_write = 0;
  // The user also deletes the job and makes it again, and etcd is restored to older revisions.
  bool wide = false;
  double run_seconds = 0;  // programs end at this time, or as soon after as they run; 0: at random
};

class World {
 public:
  World(uint64_t seed, Faults faults, api::TrainingJob job, Decide decide = reconcile::Reconcile);

  // What happens at a given second of the history, whatever else does.
  void KillAt(double second, const std::string& pod, int exit_code);
  void EvictAt(double second, const std::string& pod);
  void SuspendAt(double second, bool suspended);
  // The job is deleted, and `pause` seconds later made again under its name; its pods end meanwhile
  // as they can.
  void MakeAgainAt(double second, double pause);
  // Etcd is set back to what it held `ago` seconds before (wide worlds only).
  void RestoreAt(double second, double ago);
  // Somebody deletes the claim of the job.
  void DeleteClaimAt(double second);
  // Until then the job's Service is refused: its name is another's (whom a watch of our labels does
  // not show), or the namespace may have no more Services. Without faults nothing may be left of
  // the job by then, and it must say so.
  enum class Refusal { kNameTaken, kQuota };
  void RefuseServiceUntil(double second, Refusal refusal);

  // Until then the names of the job's first pods and of its Service are held by those of a former
  // job, which are being deleted and have a finalizer.
  void HoldNamesUntil(double second);
  // When the first pod of the job was made, in seconds of the history; nothing: none was.
  std::optional<double> first_pod() const { return first_pod_; }

  // Lives through `stormy` seconds with faults, then without them until everything has settled.
  void Run(double stormy);

  const std::vector<std::string>& violations() const { return violations_; }
  const std::map<std::string, int>& fired() const { return fired_; }
  const api::TrainingJob* job() const;  // null when it was deleted
  int writes() const { return writes_; }
  int status_writes() const { return status_writes_; }
  int reconciles() const { return reconciles_; }
  std::vector<std::string> Pods() const;  // "NAME PHASE", of the job
  const std::vector<std::string>& log() const { return log_; }
  void KeepLog() { keep_log_ = true; }

 private:
  struct Node {
    bool up = true;     // the kubelet lives
    bool ready = true;  // as the API server shows it
    bool gone = false;
    bool out_of_service = false;
    Duration skew{};  // of its clock
  };
  // A Secret or a claim. No watch of the operator tells of it.
  struct Child {
    std::string owner;      // the job's uid
    bool deleting = false;  // a claim that pods on nodes mount
  };
  struct Object {  // one of these; none: deleted
    std::optional<api::TrainingJob> job;
    std::optional<reconcile::PodSeen> pod;
    std::optional<reconcile::ServiceSeen> service;
    std::optional<Child> child;
    std::optional<std::vector<Node>>
        nodes;  // all of them: one watch, whose events keep their order
    int64_t version = 0;
  };
  struct Backup {
    std::map<std::string, Object> objects;
    int64_t version = 0;
    TimePoint at;
  };
  // What the invariants know of one job.
  struct Life {
    int failures = 0;  // ends with an error that were no disruption
    bool deadline_possible = false;
    bool succeeded = false;        // recorded
    bool leader_finished = false;  // by itself
    int most_workers = 0;
    // By a process that did not know of an older revision: it may count anew what it had counted.
    bool counted_blindly = false;
  };
  enum class Answer { kDone, kRefused, kConflict, kUnavailable, kDead };

  using Event = std::function<void()>;

  bool Chance(double probability);
  int Below(int n);
  double Between(double low, double high);
  void Fire(const std::string& fault) {
    ++fired_[fault];
    Log("! " + fault);
  }
  void Log(const std::string& line);
  void After(double seconds, Event event);
  void RunUntil(TimePoint when);
  void Violate(const std::string& what);

  // API server
  std::vector<Object>& History(const std::string& key) { return objects_[key]; }
  const Object* Now(const std::string& key) const;
  void Put(const std::string& key, Object object);
  reconcile::PodSeen* MutablePod(const std::string& name, const std::string& uid, Object* copy);
  void ChangePod(const std::string& name, const std::string& uid,
                 const std::function<void(reconcile::PodSeen&)>& change);
  void ChangeJob(const std::function<void(api::TrainingJob&)>& change, bool spec);
  void RequestDeletion(const std::string& name, const std::string& uid, double grace);
  void RemovePod(const std::string& name, const std::string& uid);
  void DeleteClaim(const std::string& key);
  void ReleaseClaim(const std::string& key);
  std::string OwnerOf(
      const Object& object) const;  // the uid of its job; empty: not of a job of ours
  void Collect();                   // what is left of jobs that are no more
  void CollectSoon();
  void MakeAgain(double pause);
  void BeginLife(const api::TrainingJob& job);
  void KeepBackup();
  void Restore(Backup backup);
  TimePoint ServerNow() const { return now_ + server_skew_; }
  TimePoint OperatorNow() const { return now_ + operator_skew_; }
  Duration AnySkew();

  // kubelet
  void Schedule(const std::string& name, const std::string& uid);
  void Start(const std::string& name, const std::string& uid);
  void Stop(const std::string& name, const std::string& uid);
  void TakeUpAgain(const reconcile::PodSeen& pod);
  void End(const std::string& name, const std::string& uid);
  void Fail(const std::string& name, const std::string& uid, int exit_code,
            const std::string& reason);
  bool MayRestartInPlace(const reconcile::PodSeen& pod) const;
  bool Decides(const reconcile::PodSeen& pod) const;

  // operator
  void StartProcess(double delay);
  void Deliver(const std::string& key, size_t version, int process);
  void Relist(int process);
  void ShowNodes();
  void Wake(double delay);
  void Reconcile(int process);
  reconcile::Observed Observe();
  void ReadJobAnew();
  Answer Send(const reconcile::Action& action, const api::TrainingJob& job, bool* alive);
  Answer Do(const reconcile::Write& write, const api::TrainingJob& cached);
  void CheckStatus(const api::TrainingJob& before, const api::JobStatus& next);
  void CheckCreation(const reconcile::PodSeen& pod);
  void CheckMounts(const reconcile::PodSeen& pod);
  void CheckForce(const reconcile::PodSeen& pod, const api::TrainingJob& cached);
  void CheckRepeated(const reconcile::Write& write, const std::string& key);
  void CheckDeletion(const reconcile::DeletePod& write, const reconcile::PodSeen& pod,
                     const api::TrainingJob& cached);

  void Chaos();
  void SawWorkers(int workers);
  void CheckSettled();

  const Decide decide_;
  std::mt19937_64 random_;
  Faults faults_;
  TimePoint now_;
  uint64_t order_ = 0;
  std::map<std::pair<TimePoint, uint64_t>, Event> events_;
  std::map<std::string, std::vector<Object>> objects_;  // by key, every version
  int64_t version_ = 0;
  int uids_ = 0;
  std::vector<Node> nodes_;
  bool reads_its_writes_ = false;  // the store takes the answers of writes (odd seeds)
  bool skewed_ = false;            // clocks differ (every third seed)
  Duration server_skew_{};
  Duration operator_skew_{};  // of the process that leads
  bool quota_ = false;
  bool service_quota_ = false;
  bool calm_ = false;
  std::set<std::string> finalizers_;  // uids of pods that have one
  // What pods mount, by their uids: keys of Secrets and claims; and which version of each those
  // that started have got.
  std::map<std::string, std::vector<std::string>> mounts_;
  std::map<std::string, std::map<std::string, int64_t>> mounted_;
  bool late_ = false;  // a request of a process that is no more
  // Uids of pods that no decision of a process that sees the world has made: by such a request, or
  // brought back with an older revision. They may be at odds with their peers.
  std::set<std::string> odd_pods_;
  api::TrainingJob first_job_;  // as the user makes it again
  int jobs_ = 1;
  std::deque<Backup> backups_;
  int restores_ = 0;
  std::optional<double> first_pod_;

  int process_ = 0;  // the one that leads; 0: none
  int processes_ = 0;
  bool busy_ = false;
  bool again_ = false;
  std::optional<TimePoint> wake_at_;
  uint64_t wake_id_ = 0;
  std::map<std::string, size_t> cache_;  // key -> version seen
  int64_t newest_delivered_ = 0;
  int64_t news_ = 0;  // grows with what this process is told
  // Its watches broke with a restored etcd, and it has not listed anew; or a late request was made
  // before etcd was restored.
  bool blind_ = false;
  std::set<std::string>
      lost_pods_;       // uids: the server said, when it was asked, that their node is gone
  bool found_ = false;  // the last outcome asked for something that was there already
  std::optional<reconcile::RefusedWrite> refused_;
  std::optional<reconcile::LostChild> lost_child_;
  int failures_in_a_row_ = 0;
  int refusals_in_a_row_ = 0;
  std::map<std::string, TimePoint> silent_since_;    // by node, as this process saw it
  std::map<std::string, TimePoint> delete_seen_;     // by pod uid, as this process saw it
  std::map<std::string, TimePoint> starting_since_;  // by pod uid, as this process saw it
  std::optional<TimePoint> mounts_asked_;            // by this process
  std::optional<size_t> nodes_decided_on_;           // the version that the last decision knew
  // What this process asked for and was told to be done: the version that the object had then.
  std::map<std::string, int64_t> answered_;
  // The same of what no watch shows: what was told by then, and when.
  std::map<std::string, std::pair<int64_t, TimePoint>> asked_;

  std::map<std::string, Life> lives_;  // by the job's uid

  int writes_ = 0;
  int status_writes_ = 0;
  int reconciles_ = 0;
  std::map<std::string, int> fired_;
  std::vector<std::string> violations_;
  std::vector<std::string> log_;
  bool keep_log_ = false;
};

// --- shared by the files of this folder
inline const std::string kJobKey = "job";
inline const std::string kNodesKey = "nodes";
inline const std::string kServiceKey = "service/";
inline const std::string kSecretKey = "secret/";
inline const std::string kClaimKey = "claim/";
inline const std::string kForeignUid = "somebody-else";
inline const std::string kFormerUid = "a-former-job";

inline std::string PodKey(const std::string& name) { return "pod/" + name; }
inline Duration Seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}
inline bool Live(const reconcile::PodSeen& pod) {
  return pod.phase == reconcile::PodPhase::kPending || pod.phase == reconcile::PodPhase::kRunning;
}
// Of a pod that is on a node.
inline size_t NodeIndex(const reconcile::PodSeen& pod) {
  MT_CHECK(!pod.node.empty());
  return static_cast<size_t>(pod.node.back() - '0');
}

// A job of random shape and policies.
api::TrainingJob RandomJob(uint64_t seed);

}  // namespace meshtrain::sim
