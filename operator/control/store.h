// What the operator knows of the cluster, arranged by job. Informers and the answers to our writes
// feed it; the controller asks for one job's view. Every change wakes the job it concerns
// ("namespace/name").
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "operator/api/training_job.h"
#include "operator/control/cache.h"
#include "operator/control/informer.h"
#include "operator/control/pod_view.h"
#include "operator/reconcile/observed.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// One job as Reconcile wants it.
struct JobView {
  std::shared_ptr<const api::TrainingJob> job;
  reconcile::Observed seen;
};

// Where a leader's /progress can be read.
struct ProgressTarget {
  std::string ip;
  int32_t port = 0;
  std::string pod_uid;
  friend bool operator==(const ProgressTarget&, const ProgressTarget&) = default;
};

// Thread-safe. `wake` is called without locks held.
class Store {
 public:
  using Wake = std::function<void(const std::string& key)>;
  explicit Store(Wake wake);

  // Fed by informers.
  Sink JobSink();
  Sink PodSink();
  Sink ServiceSink();
  Sink PodGroupSink();
  Sink NodeSink();

  // Fed by answers to our own writes.
  void WrotePod(std::string_view json);
  void WroteJob(std::string_view json);
  void WroteService(std::string_view json);
  void WrotePodGroup(std::string_view json);
  // Our deletion was accepted: the pod counts as going until the watch says more.
  void DeletedPod(const std::string& ns, const std::string& name, const std::string& uid,
                  TimePoint now);
  void DeletedService(const std::string& ns, const std::string& name, const std::string& uid);
  void DeletedJob(const std::string& ns, const std::string& name, const std::string& uid);

  // Nothing where there is no such job.
  std::optional<JobView> View(const std::string& key) const;
  // Nothing where the job has no running leader that serves progress.
  std::optional<ProgressTarget> Leader(const std::string& key) const;
  std::vector<std::string> JobKeys() const;

  int64_t jobs() const;
  int64_t pods() const;
  // Jobs by phase, for a gauge.
  std::map<std::string, int64_t> Phases() const;

 private:
  using Job = std::shared_ptr<const api::TrainingJob>;
  struct Service {
    std::string job_key;
    reconcile::ServiceSeen seen;
  };
  struct PodGroup {
    std::string job_key;
    reconcile::PodGroupSeen seen;
  };
  struct Node {
    bool ready = true;
    std::optional<TimePoint> not_ready_since;
    friend bool operator==(const Node&, const Node&) = default;
  };
  static std::optional<std::pair<std::string, Service>> ParseService(std::string_view text);
  static std::optional<std::pair<std::string, PodGroup>> ParsePodGroup(std::string_view text);
  // Calls `change` under the lock and wakes the jobs it touched after.
  void Locked(const std::function<void()>& change);
  template <typename T>
  Sink MakeSink(Cache<T>* cache,
                std::function<std::optional<std::pair<std::string, T>>(std::string_view)> parse);

  template <typename T>
  void Wrote(Cache<T>* cache, std::optional<std::pair<std::string, T>> parsed,
             std::string_view text);

  const Wake wake_;
  mutable Mutex mutex_;
  std::set<std::string> touched_ MT_GUARDED_BY(mutex_);
  // key of a job -> keys of its objects
  std::unordered_map<std::string, std::set<std::string>> pods_of_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::set<std::string>> services_of_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::string> group_of_ MT_GUARDED_BY(mutex_);
  bool nodes_known_ MT_GUARDED_BY(mutex_) = false;
  // Jobs that were seen with a pod on an unknown node, which may be newer than the nodes: to wake
  // when the nodes are known as of that version.
  mutable std::unordered_map<std::string, int64_t> unsure_ MT_GUARDED_BY(mutex_);
  Cache<Job> jobs_ MT_GUARDED_BY(mutex_);
  Cache<Pod> pods_ MT_GUARDED_BY(mutex_);
  Cache<Service> services_ MT_GUARDED_BY(mutex_);
  Cache<PodGroup> groups_ MT_GUARDED_BY(mutex_);
  Cache<Node> nodes_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
