// What /metrics shows: client-go's own names for the queue, the client and the election (so that
// dashboards made for any Go operator fit), and counters of jobs by their namespace. No other label
// is from an open set: no job or pod is named.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "operator/api/training_job.h"
#include "operator/control/work_queue.h"
#include "runtime/base/clock.h"

namespace meshtrain::control {

// Thread-safe.
class Metrics {
 public:
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
