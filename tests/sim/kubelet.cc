// Kubelets, nodes and the processes in pods of a simulated world.
#include <algorithm>
#include <iterator>

#include "tests/sim/world.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;
using testing_support::At;

void World::Schedule(const std::string& name, const std::string& uid) {
  std::vector<size_t> up;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].ready && nodes_[i].up && !nodes_[i].gone) up.push_back(i);
  }
  if (up.empty()) return After(2, [=, this] { Schedule(name, uid); });
  const size_t node = up[static_cast<size_t>(Below(static_cast<int>(up.size())))];
  ChangePod(name, uid, [&](PodSeen& pod) { pod.node = "node-" + std::to_string(node); });
  After(Between(0.1, 3), [=, this] { Start(name, uid); });
}

// The process of a pod that is to go ends, and the object goes, if its kubelet lives then.
void World::Stop(const std::string& name, const std::string& uid) {
  const Object* seen = Now(PodKey(name));
  if (seen == nullptr || !seen->pod || seen->pod->uid != uid) return;
  // An older revision does not know of it, or of the node: TakeUpAgain sees to the pod.
  if (!seen->pod->delete_requested || seen->pod->node.empty()) return;
  const Node& node = nodes_[NodeIndex(*seen->pod)];
  if (!node.up) return After(5, [=, this] { Stop(name, uid); });
  if (Live(*seen->pod)) {
    ChangePod(name, uid, [&](PodSeen& pod) {
      pod.phase =
          Below(3) == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;  // some programs leave with 0
      pod.exit_code = pod.phase == PodPhase::kSucceeded ? 0 : 143;
      pod.finished = now_ + node.skew;
    });
  }
  After(Between(0.01, 0.5), [=, this] { RemovePod(name, uid); });
}

// What comes next for a pod that an older revision brought back.
void World::TakeUpAgain(const PodSeen& pod) {
  const auto then = [&](void (World::*next)(const std::string&, const std::string&)) {
    After(Between(0.1, 3),
          [this, next, name = pod.name, uid = pod.uid] { (this->*next)(name, uid); });
  };
  if (pod.node.empty()) return then(pod.delete_requested ? &World::RemovePod : &World::Schedule);
  if (pod.delete_requested) return then(&World::Stop);
  if (pod.phase == PodPhase::kPending) return then(&World::Start);
  if (pod.phase == PodPhase::kRunning) return then(&World::End);
}

void World::Start(const std::string& name, const std::string& uid) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid ||
      object->pod->delete_requested) {
    return;
  }
  if (!Live(*object->pod) || object->pod->node.empty()) return;
  if (!nodes_[NodeIndex(*object->pod)].up) {
    return After(3, [=, this] { Start(name, uid); });
  }
  // As the kubelet does: it tries again until what is to be mounted is there.
  for (const std::string& key : mounts_[uid]) {
    const Object* child = Now(key);
    if (child != nullptr && child->child && !child->child->deleting) continue;
    Fire(key.starts_with(kSecretKey) ? "a pod waits for the token that it mounts"
                                     : "a pod waits for the claim that it mounts");
    return After(Between(1, 5), [=, this] { Start(name, uid); });
  }
  for (const std::string& key : mounts_[uid]) mounted_[uid][key] = Now(key)->version;
  CheckMounts(*object->pod);
  ChangePod(name, uid, [](PodSeen& pod) {
    pod.phase = PodPhase::kRunning;
    pod.ready = true;
  });
  double runs = Between(1, 40);
  if (faults_.run_seconds > 0) {
    runs = std::max(1.0, faults_.run_seconds - std::chrono::duration<double>(now_ - At(0)).count());
  }
  After(runs, [=, this] { End(name, uid); });
}

// Whether the program of this pod comes to an end by itself.
bool World::Decides(const PodSeen& pod) const {
  const api::TrainingJob& current = *job();
  if (*pod.task == api::Leader(current.spec)) return true;
  if (pod.task->role == Role::kEvaluator) return current.spec.wait_for_evaluator;
  return pod.task->role == Role::kWorker && current.spec.success_policy == api::kSuccessAllWorkers;
}

bool World::MayRestartInPlace(const PodSeen& pod) const {
  const auto& specs = job()->spec.replica_specs;
  const auto found = specs.find(pod.task->role);
  return found != specs.end() && (found->second.restart_policy == api::kRestartAlways ||
                                  found->second.restart_policy == api::kRestartOnFailure);
}

void World::End(const std::string& name, const std::string& uid) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid ||
      object->pod->delete_requested) {
    return;
  }
  if (object->pod->phase != PodPhase::kRunning || job() == nullptr) return;
  if (!nodes_[NodeIndex(*object->pod)].up) {
    return After(3, [=, this] { End(name, uid); });
  }
  const bool fails = !calm_ && Chance(faults_.pod);
  if (!fails && !Decides(*object->pod)) return After(Between(5, 40), [=, this] { End(name, uid); });
  if (!fails) {
    if (*object->pod->task == api::Leader(job()->spec))
      lives_[object->pod->controller_uid].leader_finished = true;
    return ChangePod(name, uid, [&](PodSeen& pod) {
      pod.phase = PodPhase::kSucceeded;
      pod.exit_code = 0;
      pod.finished = now_ + nodes_[NodeIndex(pod)].skew;
    });
  }
  struct Ending {
    int code;
    const char* reason;
  };
  const Ending endings[] = {{138, "Error"}, {138, "Error"}, {137, "Error"}, {137, "OOMKilled"},
                            {143, "Error"}, {74, "Error"},  {129, "Error"}, {1, "Error"}};
  const Ending ending =
      endings[Below(static_cast<int>(std::size(endings)) - (Below(4) == 0 ? 0 : 1))];
  Fail(name, uid, ending.code, ending.reason);
}

void World::Fail(const std::string& name, const std::string& uid, int exit_code,
                 const std::string& reason) {
  Fire("pod ends with " + std::to_string(exit_code));
  ++lives_[Now(PodKey(name))->pod->controller_uid].failures;
  Log(name + " ends with " + std::to_string(exit_code));
  if (job() != nullptr && MayRestartInPlace(*Now(PodKey(name))->pod)) {
    Fire("container restarted in place");
    ChangePod(name, uid, [&](PodSeen& pod) {
      ++pod.restart_count;
      pod.last_exit_code = exit_code;
    });
    return After(Between(1, 40), [=, this] { End(name, uid); });
  }
  ChangePod(name, uid, [&](PodSeen& pod) {
    pod.phase = PodPhase::kFailed;
    pod.exit_code = exit_code;
    pod.exit_reason = reason;
    pod.finished = now_;
  });
}

}  // namespace meshtrain::sim
