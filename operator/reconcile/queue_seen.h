// A job's place in Kueue, as far as decisions read it (Settings::queue). Kueue v1beta2, from 0.15
// on: apis/kueue/v1beta2 of sigs.k8s.io/kueue.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "operator/api/training_job.h"

namespace meshtrain::reconcile {

// Labels of a job by which Kueue's users choose a LocalQueue and a WorkloadPriorityClass.
inline constexpr std::string_view kLabelQueue = "kueue.x-k8s.io/queue-name";
inline constexpr std::string_view kLabelPriorityClass = "kueue.x-k8s.io/priority-class";
// On a Workload: what its pod sets were made of (PodSetsStamp). A Workload that was made of other
// templates than the job has now is not the job's any more.
inline constexpr std::string_view kAnnotationPodSets = "meshtrain.dev/pod-sets";

// What an admission gives one pod set.
struct AssignmentSeen {
  std::optional<int32_t> count;  // nothing: all that were asked for
  std::set<std::string> flavors;
  bool topology = false;  // it names nodes, which the pods would have to be bound to one by one
  friend bool operator==(const AssignmentSeen&, const AssignmentSeen&) = default;
};

struct WorkloadSeen {
  std::string name;
  std::string uid;
  std::string resource_version;
  std::string controller_uid;
  int64_t generation = 0;
  bool deleting = false;       // metadata.deletionTimestamp is there
  std::string stamp;           // kAnnotationPodSets
  std::string queue;           // spec.queueName
  std::string priority_class;  // spec.priorityClassRef.name
  bool of_workloads = false;   // that class is a WorkloadPriorityClass, not one of pods
  bool active = true;          // spec.active
  std::map<std::string, int32_t> pod_sets;  // spec.podSets: name and count
  // status.conditions and status.admissionChecks as they are, since a write replaces the former as
  // a whole.
  std::string conditions;
  std::string checks;
  std::string cluster_queue;  // status.admission; empty: there is none
  std::map<std::string, AssignmentSeen> assigned;
  friend bool operator==(const WorkloadSeen&, const WorkloadSeen&) = default;
};

// A ResourceFlavor: the nodes that quota of it is for.
struct FlavorSeen {
  std::map<std::string, std::string> node_labels;
  std::string tolerations;  // spec.tolerations as JSON; empty: none
  friend bool operator==(const FlavorSeen&, const FlavorSeen&) = default;
};

struct PriorityClassSeen {
  int32_t value = 0;
  bool global_default = false;
  friend bool operator==(const PriorityClassSeen&, const PriorityClassSeen&) = default;
};

// Empty for a job that has no Workload and names no queue.
struct QueueSeen {
  std::optional<WorkloadSeen> workload;       // the one of the name WorkloadName(job)
  std::map<std::string, FlavorSeen> flavors;  // those that its admission names
  std::map<std::string, PriorityClassSeen> workload_priorities;  // WorkloadPriorityClasses
  std::map<std::string, PriorityClassSeen> pod_priorities;       // PriorityClasses
  friend bool operator==(const QueueSeen&, const QueueSeen&) = default;
};

// The LocalQueue that the job names; empty: none.
std::string QueueName(const api::TrainingJob& job);
// "trainingjob-mnist-811c9dc5", as Kueue names Workloads: kind, name, a hash.
std::string WorkloadName(const api::TrainingJob& job);

}  // namespace meshtrain::reconcile
