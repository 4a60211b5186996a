// From a pod that operator/reconcile wants to the command that stands for it on this machine: ports
// for host names, files for secrets and config maps, folders for claims, and the worker beside us
// for the worker's image.
//
// Kept true: every replica has its own loopback ports for as long as the Launcher lives, whatever
// becomes of its processes, so that what others were told of it stays so. What is guaranteed of the
// ports: ports.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/local/ports.h"
#include "operator/local/private_folder.h"
#include "operator/local/process.h"
#include "operator/reconcile/reconcile.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

using cluster::TaskId;

// Where the process serves /progress and its neighbours, for commands that are not our worker:
// "127.0.0.1:17171".
inline constexpr std::string_view kEnvMetricsAddress = "MESHTRAIN_METRICS_ADDRESS";

struct LaunchOptions {
  std::string output = "runs";  // the leader's folder; the others write to OUTPUT/ROLE-INDEX
  std::string worker;           // the program that trains a `program`
  // The user's manifest, which the worker reads instead of the environment's program, so that its
  // errors say the user's lines; and what they call it. "": there is none.
  std::string manifest_file;
  std::string manifest_name;
  // Of the leader: "HOST:PORT", port 0 for any; "none": it serves nothing. Empty: loopback, any
  // port.
  std::string metrics_address;
  bool isolated = false;
  int threads = 0;  // of each process; 0: the cores are divided
  int cores = 1;
  int64_t memory = 0;  // bytes that all processes may use together; 0: not known
  // What processes get beside their container's own variables.
  std::vector<std::pair<std::string, std::string>> environment;
};

struct Launch {
  Command command;
  std::string restart_policy;
  Duration grace{};
  std::vector<std::string> progress_addresses;  // where it may answer, likeliest first
  std::string termination_log;                  // the file that it may leave its last words in
};

// How many threads each of `processes` computes with, the first ones more where it does not come
// out even; at least one. Pure. CoresFor(8, 3, 0) == 3, CoresFor(8, 3, 2) == 2.
int CoresFor(int cores, int processes, int place);

struct Container;

class Launcher {
 public:
  // Takes the ports and makes a private folder for secrets (private_folder.h). Borrows
  // `job`. Errors: kResourceExhausted without free ports; those of files.
  static Result<std::unique_ptr<Launcher>> Create(const api::TrainingJob& job,
                                                  LaunchOptions options);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Whether each role can run here: kFailedPrecondition with one line for each thing that keeps it
  // from it, with its path in the manifest. `notes` takes what will be missing and does no harm.
  Status Check(std::vector<std::string>* notes) const;

  // Errors: those of Check, and of files.
  Result<Launch> Prepare(const reconcile::CreatePod& pod) const;

  Status Make(
      const reconcile::CreateSecret& secret);  // 32 random bytes, hexadecimal; an old one stays
  Status Make(const reconcile::CreateConfigMap& map);
  Status Make(const reconcile::CreateClaim& claim);

  // OUTPUT for the leader, OUTPUT/worker-1 for others.
  std::string OutputFolder(TaskId task) const;

 private:
  struct Ports {
    int training = 0;
    int http = 0;
  };
  Launcher(const api::TrainingJob& job, LaunchOptions options)
      : job_(job), options_(std::move(options)) {}
  // Whether our worker reads the manifest's file: the program is the manifest's, not one that the
  // template's environment gives. Takes the program's variable out of the container then.
  bool ReadsManifest(Container* container) const;
  // Where the worker finds the manifest, and where its checkpoints are if not there.
  void AddManifestArguments(const Container& container, std::vector<std::string>* arguments) const;
  // The worker's own flags.
  void AddWorkerArguments(TaskId task, const std::string& directory,
                          std::vector<std::string>* arguments) const;
  std::optional<std::string> MetricsAddress(TaskId task) const;
  std::string LocalCheckpoint(const std::string& given) const;
  // What stands for the checkpoint claim. Without the job's uid: the next run of the same manifest
  // goes on from what is there.
  std::string ClaimFolder() const;

  const api::TrainingJob& job_;
  const LaunchOptions options_;
  PortReservation reservation_;
  std::map<TaskId, Ports> ports_;
  std::map<std::string, std::string> hosts_;  // of the cluster -> of this machine
  std::unique_ptr<PrivateFolder> private_folder_;
};

}  // namespace meshtrain::local
