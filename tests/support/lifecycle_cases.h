// What becomes of a job whose replicas end one after another: one table for everything that carries
// out what operator/reconcile decides. tests/operator/reconcile plays it over values,
// tests/operator/local with processes.
#pragma once

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "operator/api/training_job.h"

namespace meshtrain::testing_support {

struct LifecycleCase {
  std::string name;
  api::TrainingJob job;  // MakeJob("mnist"): its containers have no command
  // The container of that replica ends so, by itself, while the job runs and everything before has
  // had its effect.
  struct End {
    cluster::TaskId task;
    int exit_code = 0;
    std::string lost = {};  // the incarnation that its last words name as lost
  };
  std::vector<End> ends;  // none: time alone ends it
  // The volume for its checkpoints cannot be made, so it has no pods.
  bool refused = false;
  // After `ends` the user suspends it; a run on one machine is stopped.
  bool suspended = false;

  // Then:
  std::string phase;    // Succeeded, Failed, Suspended or Running
  std::string reason;   // of the condition of that name; empty: any
  std::string message;  // its beginning; empty: any
  int restarts = 0;
  // Pods that ended and are still there.
  std::set<cluster::TaskId> kept;
  // Of the pod of the last of `ends`, where the job still runs: in which attempt it was made.
  int attempt = 0;
};

inline void PrintTo(const LifecycleCase& c, std::ostream* out) { *out << c.name; }

// Names are unique and fit for gtest.
std::vector<LifecycleCase> LifecycleCases();

}  // namespace meshtrain::testing_support
