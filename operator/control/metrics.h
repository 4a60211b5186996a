// What /metrics shows: client-go's own names for the queue, the client and the election (so that
// dashboards made for any Go operator fit), and counters of jobs by their namespace. No other label
// is from an open set, but for the series that name a job: those are of at most kMostShown jobs, at
// most eleven of each, and go when their job ends or is gone. docs/operator.md lists all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/control/work_queue.h"
#include "runtime/base/clock.h"

namespace meshtrain::control {

// How long the processes of a running job that work in step take for a step, each without waiting
// for the others.
struct RankSteps {
  std::string ns, job;
  std::string slowest;  // the replica, "worker-3"
  double seconds = 0;   // of the slowest
  double median = 0;
  bool straggles = false;  // the condition Straggling is true: of `slowest`
  friend bool operator==(const RankSteps&, const RankSteps&) = default;
};

// How far a job is, as its status tells it, until the job is deleted: so one that is over before
// the second scrape is seen as well. The step and what comes with it are absent until they are
// told.
struct JobFigures {
  std::string ns, job;
  bool runs = false;
  std::optional<int64_t> step, total_steps, checkpoint_step;
  std::optional<double> loss, accuracy, examples_per_second;
  int32_t restarts = 0;
  int64_t processes = 0;  // that its spec wants
  TimePoint advanced;     // when the step last moved
  friend bool operator==(const JobFigures&, const JobFigures&) = default;
};

// Thread-safe.
class Metrics {
 public:
  // Jobs that have series with their name; of more, those whose slowest rank is furthest behind the
  // median, and for figures those that run, then those that moved last.
  static constexpr size_t kMostShown = 500;

  explicit Metrics(std::string api_host);
  ~Metrics();

  // For HttpClientOptions.
  void OnRequest(std::string_view verb, std::string_view code, Duration took);
  void OnWait(std::string_view verb, Duration waited);
  // For WorkQueue.
  QueueObserver ForQueue();
  void OnReconcile(bool failed, Duration took);
  // For Applier: counts the conditions that became true, and how long the phase before lasted, as
  // the two statuses tell.
  void OnStatus(const api::TrainingJob& job, const api::JobStatus& before,
                const api::JobStatus& after);
  // From the arrival of a pod's event to the status that tells of it.
  void OnPodEventTold(Duration took);
  void SetLeader(const std::string& lease, bool leading);

  // Asked at each scrape; the functions may block shortly. Unset them (empty) before what they use
  // goes away.
  struct Gauges {
    // (namespace, phase) -> jobs
    std::function<std::map<std::pair<std::string, std::string>, int64_t>()> jobs_by_phase;
    std::function<std::vector<RankSteps>()> rank_steps;
    std::function<std::vector<JobFigures>()> figures;
    std::function<int64_t()> pods, queue_depth;
    std::function<Duration()> unfinished, longest_running;
  };
  void SetGauges(Gauges gauges);

  // Prometheus' text format, version 0.0.4.
  std::string Text();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshtrain::control
