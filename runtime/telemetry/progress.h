// How far a job is: what /progress answers, what the termination message says, what the operator
// shows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mutex.h"

namespace meshtrain::telemetry {

struct Progress {
  struct Plan {
    std::string mesh;
    int64_t peak_bytes_per_device = 0;
    int64_t collective_bytes_per_step = 0;
    std::string hash;
  };
  struct Checkpoint {
    int64_t step = 0;
    std::string path;
  };

  int64_t step = 0;
  std::optional<int64_t> total_steps;
  double epoch = 0;  // 1.5: half-way through the second pass
  std::optional<double> loss;
  std::map<std::string, double> metrics;  // "accuracy"
  std::optional<double> examples_per_second;
  std::optional<double> eta_seconds;
  // Each rank's own time in its last step, without waiting for others; not finite: none yet. Where
  // nobody knows them all, empty.
  std::vector<double> rank_step_seconds;
  std::optional<Checkpoint> checkpoint;
  std::optional<Plan> plan;
  // While training stands because a process was lost or is stuck: that one, "worker-2". Empty while
  // training goes on.
  std::string stopped_rank;
  // The incarnation that ended so, which is the same for all that were in it.
  std::string lost_incarnation;
};

// Compact JSON, keys as in TrainingJob's status:
// {"step":120,"totalSteps":120,"epoch":3,"loss":0.18,"accuracy":0.94,
// "metrics":{"accuracy":0.94},"examplesPerSecond":61000,"etaSeconds":0,"rankStepSeconds":[…],
// "checkpoint":{"step":120,"path":"…"},"plan":{"mesh":"batch=8","peakBytesPerDevice":…,"collectiveBytesPerStep":…,
// "hash":"…"},"planHash":"…","stoppedRank":"worker-2",
// "lostIncarnation":"1767323045123"}.
// What is unknown is absent; what is not finite is null. Of more than 1,024 ranks the times are
// left out: the answer is bounded.
std::string ProgressJson(const Progress& progress);

// The same in at most 4,096 bytes, Kubernetes' limit for a termination message: without the ranks'
// times, and in need without metrics. With an `error`, what ended the process: kubelets look at the
// log only where there is no message.
std::string TerminationMessage(const Progress& progress, std::string_view error = {});

// The newest progress, from the training thread to whoever asks. Thread-safe.
class ProgressBoard {
 public:
  void Set(Progress progress) {
    MutexLock lock(mutex_);
    progress_ = std::move(progress);
  }
  Progress Get() const {
    MutexLock lock(mutex_);
    return progress_;
  }

 private:
  mutable Mutex mutex_;
  Progress progress_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::telemetry
