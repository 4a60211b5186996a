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
#include "operator/control/metrics.h"
#include "operator/control/pod_view.h"
#include "operator/control/queue/workload_view.h"
#include "operator/reconcile/observed.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"

namespace meshtrain::control {

// One job, and what was known of it at one moment. The pods are shared with the store and never
// change: a look at a job of 10,000 pods takes no more than their addresses under the lock.
struct JobView {
  struct SeenPod {
    std::shared_ptr<const Pod> pod;
    // Of its node; kUnseen where no Nodes are watched, and where the node is not among them.
    reconcile::NodeState node_state = reconcile::NodeState::kUnseen;
    std::optional<TimePoint> node_not_ready_since;
    bool node_missing = false;  // Nodes are watched, and this one is not among them
  };
  std::shared_ptr<const api::TrainingJob> job;
  std::vector<SeenPod> pods;
  std::vector<reconcile::ServiceSeen> services;
  std::optional<reconcile::PodGroupSeen> pod_group;
  reconcile::QueueSeen queue;
  // Grows whenever a watch or a list tells something new of this job; our own writes do not count.
  int64_t change = 0;

  // As Reconcile wants it: pods, Services, the pod group and the place in a queue. Copies the pods.
  reconcile::Observed Observe() const;
  // The nodes that may be gone, or just not be seen yet: nobody but the server can tell.
  std::set<std::string> MissingNodes() const;
};

// Where a leader's /progress can be read.
struct ProgressTarget {
  std::string ip;
  int32_t port = 0;
  std::string pod_uid;
  friend bool operator==(const ProgressTarget&, const ProgressTarget&) = default;
};

// Versions of different kinds are never compared: each kind may lie in an etcd of its own.
//
// Thread-safe. `wake` is called without locks held.
class Store {
 public:
  using Wake = std::function<void(const std::string& key)>;
  explicit Store(Wake wake, Clock& clock = SystemClock());

  // Fed by informers: of the objects of one namespace, or of all ("").
  Sink JobSink(const std::string& ns = "");
  Sink PodSink(const std::string& ns = "");
  Sink ServiceSink(const std::string& ns = "");
  Sink PodGroupSink(const std::string& ns = "");
  Sink WorkloadSink(const std::string& ns = "");
  // Of kinds without namespaces.
  Sink NodeSink();
  Sink FlavorSink();
  Sink WorkloadPrioritySink();
  Sink PodPrioritySink();

  // Fed by answers to our own writes.
  void WrotePod(std::string_view json);
  // `before`: what the write was decided on (api::FromJson).
  void WroteJob(std::string_view json, const api::TrainingJob* before = nullptr);
  void WroteService(std::string_view json);
  void WrotePodGroup(std::string_view json);
  void WroteWorkload(std::string_view json);
  // Our deletion was accepted: the pod counts as going until the watch says more. `answer`: what
  // the server said, often the pod with the time at which it will be gone.
  void DeletedPod(const std::string& ns, const std::string& name, const std::string& uid,
                  TimePoint now, std::string_view answer = {});
  void DeletedService(const std::string& ns, const std::string& name, const std::string& uid);
  void DeletedJob(const std::string& ns, const std::string& name, const std::string& uid);

  // The server was asked for node `name` after `view` was taken, and has none: the pods of that
  // view that are on it have lost it. (A pod that comes later may be on a new node of that name.)
  void LostNode(const JobView& view, const std::string& name);

  // nullopt where there is no such job.
  std::optional<JobView> View(const std::string& key) const;
  // nullopt where the job has no running leader that serves progress.
  std::optional<ProgressTarget> Leader(const std::string& key) const;
  std::vector<std::string> JobKeys() const;

  int64_t jobs() const;
  int64_t pods() const;
  // Jobs by namespace and phase, for a gauge.
  std::map<std::pair<std::string, std::string>, int64_t> Phases() const;
  // Of the jobs that run and tell, for gauges.
  std::vector<RankSteps> Ranks() const;
  // Of the jobs that have told how far they are, ended ones too.
  std::vector<JobFigures> Figures() const;
  // When the first pod event came that no look at this job has seen yet, by Monotonic(); it counts
  // as seen from now on.
  std::optional<Duration> TakePodEvent(const std::string& key);
  // It was seen, but what it tells is not told yet.
  void ReturnPodEvent(const std::string& key, Duration at);

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
    std::optional<TimePoint> not_ready_since;  // since when we see it so, by our own clock
    // Somebody vouches that nothing runs there any more (the taint of that name): as good as gone.
    bool out_of_service = false;
    friend bool operator==(const Node&, const Node&) = default;
  };
  using PodPtr = std::shared_ptr<const Pod>;
  static std::optional<std::pair<std::string, Service>> ParseService(std::string_view text);
  static std::optional<std::pair<std::string, PodGroup>> ParsePodGroup(std::string_view text);
  static std::optional<std::pair<std::string, Workload>> ParseWorkloadEntry(std::string_view text);
  // A job's place in its queue, with what its admission and its priority name.
  reconcile::QueueSeen QueueOf(const api::TrainingJob& job) const MT_REQUIRES(mutex_);
  void TouchQueued() MT_REQUIRES(mutex_);  // every job that names a queue
  // Where a change comes from: a watch or a list, so that the world has changed; or our own write.
  enum class News : uint8_t { kTold, kOurs };
  // Calls `change` under the lock and wakes the jobs it touched after.
  void Locked(News news, const std::function<void()>& change);
  // What this process knows of an object beyond what its text says, taken over from what it was.
  template <typename T>
  void Carry(const T*, T&) MT_REQUIRES(mutex_) {}
  void Carry(const PodPtr* before, PodPtr& next) MT_REQUIRES(mutex_);
  void Carry(const Node* before, Node& next) MT_REQUIRES(mutex_);
  // Replaces a pod by a changed copy, of the same version. False where there is none of that uid.
  bool MarkPod(const std::string& key, const std::string& uid,
               const std::function<void(Pod& pod)>& mark) MT_REQUIRES(mutex_);
  template <typename T>
  Sink MakeSink(Cache<T>* cache, const std::string& ns,
                std::function<std::optional<std::pair<std::string, T>>(std::string_view)> parse);

  template <typename T>
  void Wrote(Cache<T>* cache, std::optional<std::pair<std::string, T>> parsed,
             std::string_view text);

  const Wake wake_;
  Clock& clock_;
  mutable Mutex mutex_;
  std::set<std::string> touched_ MT_GUARDED_BY(mutex_);
  // key of a job -> keys of its objects
  std::unordered_map<std::string, std::set<std::string>> pods_of_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::set<std::string>> services_of_ MT_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::string> group_of_ MT_GUARDED_BY(mutex_);
  bool nodes_known_ MT_GUARDED_BY(mutex_) = false;
  // key of a job -> JobView::change
  std::unordered_map<std::string, int64_t> changes_ MT_GUARDED_BY(mutex_);
  int64_t told_ MT_GUARDED_BY(mutex_) = 0;
  // key of a job -> TakePodEvent
  std::unordered_map<std::string, Duration> pod_event_at_ MT_GUARDED_BY(mutex_);
  std::optional<Duration> pod_event_now_ MT_GUARDED_BY(mutex_);  // set while one is taken in
  Cache<Job> jobs_ MT_GUARDED_BY(mutex_);
  Cache<PodPtr> pods_ MT_GUARDED_BY(mutex_);
  Cache<Service> services_ MT_GUARDED_BY(mutex_);
  Cache<PodGroup> groups_ MT_GUARDED_BY(mutex_);
  Cache<Node> nodes_ MT_GUARDED_BY(mutex_);
  Cache<Workload> workloads_ MT_GUARDED_BY(mutex_);
  // These belong to no namespace: their keys are "/name".
  Cache<reconcile::FlavorSeen> flavors_ MT_GUARDED_BY(mutex_);
  Cache<reconcile::PriorityClassSeen> workload_priorities_ MT_GUARDED_BY(mutex_);
  Cache<reconcile::PriorityClassSeen> pod_priorities_ MT_GUARDED_BY(mutex_);
};

}  // namespace meshtrain::control
