// `meshtrain run`: a TrainingJob on this machine, by the same decisions as in a cluster. One loop
// asks reconcile::Reconcile what to do, applies the Outcome to a World (world.h) with processes for
// pods, and waits for a process, a signal or a time.
//
// What is different from a cluster, and only that:
//   - a pod is its training container's command, or without one the worker beside this program; no
//     images, volumes, init containers or sidecars;
//   - names are loopback ports (ports.h), claims are folders, secrets are files;
//   - the worker beside us reads the user's manifest as it stands, from the output folder's copy,
//     and calls it by the user's name for it: its errors say the user's lines and columns;
//   - the job ends with the run. What still runs when it has ended is asked to end: at once after a
//     failure, and what cleanPodPolicy names; else, after a success, it may end by itself for a
//     while first (a ps never would);
//   - SIGINT, SIGTERM and SIGHUP suspend the job, so that processes save; a second one kills.
//   - runPolicy.managedBy, schedulingPolicy and the TTL mean nothing here.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "operator/local/folder_lock.h"
#include "operator/local/launch.h"
#include "operator/local/nonblocking_writer.h"
#include "operator/local/process.h"
#include "operator/local/progress.h"
#include "operator/local/signals.h"
#include "operator/local/world.h"
#include "operator/reconcile/reconcile.h"

namespace meshtrain::local {

struct RunnerOptions {
  // As the user wrote it; kept in the output folder, from where the worker reads it. "": not known.
  std::string manifest;
  std::string manifest_name;  // the user's file, as the worker's errors call it
  LaunchOptions launch;
  CrashLoop crash_loop;
  Duration progress_period = std::chrono::seconds(1);
  Duration linger =
      std::chrono::seconds(30);  // for processes that may end by themselves after a success
  int stdout_fd = 1;
  int stderr_fd = 2;
  // Each time there is nothing left to decide for the moment: the job and its pods.
  std::function<void(const api::TrainingJob& job, const reconcile::Observed& seen)> on_settled;
};

struct JobEnd {
  // 0 when the job succeeded; of a job that failed, what the replica left with that failed it, else
  // 70; 130, 143 or 129 after a signal; 78 for a job that cannot run here or is suspended; 73
  // without an output folder.
  int exit_code = 0;
  api::JobStatus status;
};

// Not thread-safe. Its processes end with it.
class Runner {
 public:
  Runner(api::TrainingJob job, RunnerOptions options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Once. The thread that calls it must be the one that made `signals`.
  JobEnd Run(StopSignals& signals);

 private:
  // A pod's process and where its output goes.
  struct Child {
    std::string uid;
    TaskId task;
    std::unique_ptr<Process> process;
    std::string termination_log;
    std::optional<LogFile> log;
    LineCutter out, err;
    bool out_open = false;
    bool err_open = false;
    std::string tail;   // the last it said
    std::string shown;  // the last line of it that the user saw
  };

  TimePoint Now() const { return SystemClock().Now(); }
  bool IsLeader(TaskId task) const { return task == api::Leader(job_.spec); }
  bool Live() const;  // some process runs

  // Decides and acts until there is nothing to do. False for a bug of ours that never settles.
  bool Settle();
  bool Apply(const reconcile::Action& action);
  void Record(const reconcile::PatchStatus& patch);
  void CarryOut(const Order& order);
  void Start(const std::string& uid);
  void FollowLeader();
  void EndTheRest();

  bool Wait(StopSignals& signals);
  void OnSignal(int signal);
  void Read(Child* child, bool standard_error);
  void Say(Child* child, bool standard_error, std::string_view bytes);
  void TakeLine(Child* child, bool standard_error, std::string_view line);
  void Reap(Child* child);

  void Tell(const std::string& line);
  // `line` without what a replica said last at its end, where the user saw that from the replica
  // itself.
  std::string WithoutShown(std::string line) const;
  void Summarize();
  int ExitCode() const;

  api::TrainingJob job_;
  const RunnerOptions options_;
  World world_;
  std::vector<FolderLock> folders_;  // that it writes to
  std::unique_ptr<Launcher> launcher_;
  std::map<std::string, Launch> launches_;  // by uid of the pod
  std::list<Child> children_;
  NonblockingWriter stdout_;
  NonblockingWriter stderr_;
  std::optional<TimePoint> wake_at_;
  std::optional<TimePoint> linger_until_;
  std::optional<reconcile::ProgressSeen> progress_;
  std::optional<reconcile::RefusedWrite> refused_;
  // Of those that ended: what they said last, where it was shown.
  std::map<TaskId, std::string> shown_;
  std::optional<int> signal_;               // the first that came before the job ended
  std::optional<int> leader_code_;          // how the leader's process last ended
  int failure_code_ = 0;                    // of the replica that failed the job
  bool gone_ = false;                       // its TTL is over
  bool hurried_ = false;                    // a signal came after the end
  bool status_lost_ = false;                // status.json could not be written, which was told
  std::unique_ptr<LoopbackPuller> puller_;  // last: its thread starts when the rest is there
};

}  // namespace meshtrain::local
