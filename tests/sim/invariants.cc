// What must hold in a simulated world, by the numbers of design.md where it has them:
//   P1  no two live pods of one replica; nothing that may live on is deleted by force
//   P2  a job recorded as Succeeded never runs again
//   P3  when the faults end, the job comes to its end and nothing is left to do
//   P4  a pod that does well is not deleted
//   P5  what was answered is not asked for again while its object stays as it is
//   P6  no two live pods of a job know different clusters
//   P7  no two live pods of a job mount different tokens or claims
//   P9  nothing of others is touched
// and of each status: its conditions agree, nothing is counted that did not happen, and what counts
// never falls. SpoiltTest shows that each of them bites.
#include <algorithm>

#include "operator/api/json.h"
#include "tests/sim/world.h"

namespace meshtrain::sim {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;

// A request that was done is not made again while its object stays as it is.
void World::CheckRepeated(const reconcile::Write& write, const std::string& key) {
  const Object* object = Now(key);
  const int64_t version = object == nullptr ? 0 : object->version;
  const auto [at, first] = answered_.try_emplace(ToString(write), version);
  if (!first && at->second == version) Violate("P5: asked for again: " + ToString(write));
  at->second = version;
}

// Pods that can run at once know the same cluster.
void World::CheckCreation(const PodSeen& pod) {
  if (late_ || blind_) {
    odd_pods_.insert(pod.uid);
    return;
  }
  if (!reads_its_writes_) return;  // does not know what it made itself
  for (const auto& [key, versions] : objects_) {
    const auto& other = versions.back().pod;
    if (!other || other->controller_uid != pod.controller_uid || other->uid == pod.uid) continue;
    if (!Live(*other) || odd_pods_.contains(other->uid)) continue;
    if (other->cluster != pod.cluster) {
      Violate("P6: " + pod.name + " and " + other->name + " know different clusters");
    }
  }
}

// Processes of a job hold the same token and write the same claim. One whose pod is going is none
// of its peers any more.
void World::CheckMounts(const PodSeen& pod) {
  if (!reads_its_writes_ || odd_pods_.contains(pod.uid)) return;
  for (const auto& [key, versions] : objects_) {
    const auto& other = versions.back().pod;
    if (!other || other->controller_uid != pod.controller_uid || other->uid == pod.uid) continue;
    if (!Live(*other) || other->delete_requested || odd_pods_.contains(other->uid)) continue;
    for (const auto& [child, version] : mounted_[other->uid]) {
      const auto same = mounted_[pod.uid].find(child);
      if (same == mounted_[pod.uid].end() || same->second == version) continue;
      Violate("P7: " + pod.name + " and " + other->name + " mount different " + child);
    }
  }
}

// A pod that does well is not deleted.
void World::CheckDeletion(const reconcile::DeletePod& write, const PodSeen& pod,
                          const api::TrainingJob& cached) {
  if (blind_) return;
  const api::TrainingJob* current = job();
  const Node* node = pod.node.empty() ? nullptr : &nodes_[NodeIndex(pod)];
  const bool silent = node != nullptr && (!node->up || node->gone || !node->ready);
  const bool wanted = pod.task->index < api::Replicas(cached.spec, pod.task->role);
  // Pods go while their Service is refused, even those that started before the deletion came.
  const Object* service = Now(kServiceKey + cached.metadata.name);
  // What is left of a job that is no more goes with it.
  const bool lives = current != nullptr && current->metadata.uid == cached.metadata.uid;
  const bool served = service != nullptr && service->service &&
                      service->service->controller_uid == cached.metadata.uid;
  if (served && pod.phase == PodPhase::kRunning && wanted && !silent &&
      !api::IsFinished(cached.status) && !cached.spec.run_policy.suspend && lives &&
      pod.attempt >= current->status.recovery.attempt) {
    // With RestartAll, or a node that came back, pods of earlier attempts go; the newest never
    // do.
    if (write.grace_seconds != 0) Violate("P4: " + write.name + " runs well and is deleted");
  }
}

// Processes may live on where nobody knows better, and the user has not said how long is enough.
void World::CheckForce(const PodSeen& pod, const api::TrainingJob& cached) {
  if (pod.node.empty() || late_) return;
  const size_t index = NodeIndex(pod);
  if (!nodes_decided_on_) return Violate("P1: " + pod.name + " is deleted by force, unseen");
  const Node& node = (*objects_.at(kNodesKey)[*nodes_decided_on_].nodes)[index];
  if (lost_pods_.contains(pod.uid) || node.out_of_service) return;
  const auto& patience = cached.spec.run_policy.dead_node_seconds;
  if (!patience) {
    return Violate("P1: " + pod.name + " is deleted by force, and its process may live on");
  }
  const auto since = silent_since_.find(pod.node);
  if (since == silent_since_.end() ||
      OperatorNow() < since->second + Duration(std::chrono::seconds(*patience))) {
    Violate("P1: " + pod.name + " is deleted by force before deadNodeSeconds");
  }
}

void World::CheckStatus(const api::TrainingJob& before, const api::JobStatus& next) {
  using api::ConditionType;
  const bool succeeded = api::IsTrue(next, ConditionType::kSucceeded);
  const bool failed = api::IsTrue(next, ConditionType::kFailed);
  if (succeeded && failed) Violate("Succeeded and Failed at once");
  if ((succeeded || failed) && (api::IsTrue(next, ConditionType::kRunning) ||
                                api::IsTrue(next, ConditionType::kRestarting) ||
                                api::IsTrue(next, ConditionType::kWaiting))) {
    Violate("Running, Restarting or Waiting beside a terminal condition");
  }
  if (api::IsTrue(next, ConditionType::kRunning) && api::IsTrue(next, ConditionType::kRestarting)) {
    Violate("Running and Restarting at once");
  }
  Life& life = lives_[before.metadata.uid];
  if (succeeded) life.succeeded = true;
  // It still tells of what the older revision does not know, and nothing can stop it.
  if (blind_) return;
  if (api::IsTrue(before.status, ConditionType::kSucceeded) && !succeeded) {
    Violate("P2: Succeeded was taken back");
  }
  if (api::IsTrue(before.status, ConditionType::kFailed) && !failed) {
    Violate("Failed was taken back");
  }
  if (succeeded && !life.leader_finished) {
    Violate("Succeeded, but the leader never finished: it was only told to stop");
  }
  const int32_t counted = next.recovery.counted + next.recovery.in_place.total();
  if (counted > life.failures && !life.counted_blindly) {
    Violate("counted " + std::to_string(counted) + " restarts, but only " +
            std::to_string(life.failures) + " processes failed");
  }
  const api::RunPolicy& run = before.spec.run_policy;
  // A suspended job stands still; it fails when it is resumed.
  if (!api::IsTrue(next, ConditionType::kSuspended) && run.backoff_limit &&
      !run.backoff_window_seconds && counted > *run.backoff_limit && !failed && !succeeded) {
    Violate("counted " + std::to_string(counted) + " restarts, over its backoffLimit " +
            std::to_string(*run.backoff_limit) + ", and did not fail");
  }
  if (next.restarts < before.status.restarts) {
    Violate("RESTARTS fell from " + std::to_string(before.status.restarts) + " to " +
            std::to_string(next.restarts));
  }
  for (const auto& [role, replicas] : before.status.replica_statuses) {
    const auto now = next.replica_statuses.find(role);
    if (now == next.replica_statuses.end() || now->second.restarts < replicas.restarts) {
      Violate("the restarts of " + std::string(cluster::RoleName(role)) + " fell");
    }
  }
  if (next.recovery.attempt < before.status.recovery.attempt) Violate("attempt went back");
  if (failed && !api::IsTrue(before.status, ConditionType::kFailed)) {
    const std::string& reason = next.conditions.at(ConditionType::kFailed).reason;
    const bool deadline = reason == "DeadlineExceeded" || reason == "StartupDeadlineExceeded";
    if (deadline ? !life.deadline_possible : life.failures == 0) {
      Violate("Failed (" + reason + ") though no process had failed: only disruptions happened");
    }
  }
  if (api::StatusToJson(next).size() > 8192) Violate("status larger than 8 kB");
  for (const auto& [type, condition] : next.conditions) {
    if (condition.reason.empty()) Violate("a condition without a reason");
  }
}

void World::CheckSettled() {
  const api::TrainingJob* current = job();
  for (const char* name : {"unrelated"}) {
    if (const Object* object = Now(PodKey(name));
        object == nullptr || !object->pod || object->pod->delete_requested) {
      Violate(std::string("P9: the foreign pod ") + name + " was touched");
    }
  }
  for (const auto& [key, versions] : objects_) {
    const std::string owner = OwnerOf(versions.back());
    const auto& pod = versions.back().pod;
    const bool held = pod && pod->delete_requested && finalizers_.contains(pod->uid);
    if (!owner.empty() && !held && (current == nullptr || current->metadata.uid != owner)) {
      Violate(key + " outlives its job " + owner);
    }
  }
  if (current == nullptr) return;
  if (!api::IsFinished(current->status)) {
    std::string pods;
    for (const std::string& pod : Pods()) pods += pod + "; ";
    return Violate("P3: the job never ended; phase " + current->status.phase + "; pods " + pods);
  }
  const std::string& policy = current->spec.run_policy.clean_pod_policy;
  for (const auto& [key, versions] : objects_) {
    const auto& pod = versions.back().pod;
    if (!pod || pod->controller_uid != current->metadata.uid) continue;
    if (pod->phase == PodPhase::kPending) {
      Violate("P2: " + pod->name + " still waits to start after the end");
    }
    if (policy == api::kCleanAll || (policy == api::kCleanRunning && Live(*pod))) {
      Violate("P3: " + pod->name + " was left behind, cleanPodPolicy is " + policy);
    }
  }
  Relist(process_);
  const reconcile::Outcome outcome = decide_(*current, Observe(), OperatorNow());
  if (!outcome.empty()) Violate("P3: not settled:\n" + ToString(outcome));
}

}  // namespace meshtrain::sim
