// What a cluster would hold of one job, as values: its pods as a kubelet keeps them, and the small
// objects beside them. It starts nothing itself: TakeOrders says what is to be done with processes,
// and Ended is told what became of them. No clock inside: times come in.
//
// Kept true: names of pods are unique; an order is given once; a pod that is being deleted goes
// when its process has ended, at once where none runs; a container that its restart policy brings
// back waits as long as a kubelet makes it wait.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "operator/reconcile/observed.h"
#include "runtime/base/status.h"

namespace meshtrain::local {

using cluster::TaskId;

// How a container that ended is started again in place: at once the first time, then after `first`,
// doubling up to `longest`; forgotten after a run of `forgive` (kubelet's constants:
// pkg/kubelet/kubelet.go, MaxContainerBackOff, and client-go's flowcontrol.Backoff, which expires
// after twice the longest wait).
struct CrashLoop {
  Duration first = std::chrono::seconds(10);
  Duration longest = std::chrono::seconds(300);
  Duration forgive = std::chrono::seconds(600);
};

struct NewPod {
  std::string name;
  TaskId task;
  int32_t attempt = 0;
  std::string restart_policy{api::kRestartNever};  // of the pod: Always, OnFailure or Never
  Duration grace = std::chrono::seconds(30);       // between being asked to end and being killed
};

// How a process ended.
struct Exit {
  int32_t code = 0;     // 128 + signal where a signal ended it
  std::string message;  // its termination message
};

struct Order {
  enum class Kind : uint8_t { kStart, kTerminate, kKill };
  Kind kind = Kind::kStart;
  std::string uid;
  friend bool operator==(const Order&, const Order&) = default;
};

class World {
 public:
  explicit World(std::string job_uid, CrashLoop crash_loop = {});

  // --- what an Outcome asks for
  // The new pod's uid. Errors: kAlreadyExists.
  Result<std::string> AddPod(const NewPod& pod, TimePoint now);
  // Nothing where there is no such pod of that uid. Without a grace period the pod's own; 0: it is
  // killed. Asked again, only a shorter time counts.
  void DeletePod(const std::string& name, const std::string& uid, std::optional<Duration> grace,
                 TimePoint now);
  // False where it was there already.
  bool AddService(const std::string& name) { return services_.insert(name).second; }

  // --- what the user asks for
  void DeleteAll(std::optional<Duration> grace, TimePoint now);
  // Pods that wait to be started, again or for the first time.
  void DeleteWaiting(TimePoint now);

  // --- processes
  // What is due, pods in the order of their tasks. A pod whose start is ordered counts as running.
  std::vector<Order> TakeOrders(TimePoint now);
  // When TakeOrders will have something to say.
  std::optional<TimePoint> next_order() const;
  // The process of that pod ended, or could not be started.
  void Ended(const std::string& uid, const Exit& exit, TimePoint now);

  // --- what there is
  // Pods and services; the rest is the caller's to fill in.
  reconcile::Observed Observe() const;
  // Null where there is none.
  const reconcile::PodSeen* Find(const std::string& uid) const;
  const reconcile::PodSeen* Find(TaskId task) const;
  bool Runs(const std::string& uid) const;  // a process of it lives
  bool empty() const { return pods_.empty(); }

 private:
  struct Pod {
    reconcile::PodSeen seen;
    std::string restart_policy;
    Duration grace{};
    bool running = false;
    std::optional<TimePoint> start_at;  // to be started, then or later
    std::optional<Exit> ended;          // how the process ended that is to be started again
    TimePoint started;
    int crashes = 0;  // since the last long run
    bool told_to_end = false;
    bool told_to_die = false;
  };
  using Pods = std::map<TaskId, Pod>;

  const Pod* Get(const std::string& uid) const;  // null where there is none
  Pod* Get(const std::string& uid);
  // Returns the pod after it.
  Pods::iterator Delete(Pods::iterator pod, std::optional<Duration> grace, TimePoint now);

  const std::string job_uid_;
  const CrashLoop crash_loop_;
  Pods pods_;
  std::set<std::string> services_;
  int made_ = 0;
};

}  // namespace meshtrain::local
