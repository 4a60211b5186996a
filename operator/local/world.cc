#include "operator/local/world.h"

#include <algorithm>
#include <utility>

namespace meshtrain::local {
namespace {

using reconcile::PodPhase;
using reconcile::PodSeen;

void Earliest(std::optional<TimePoint>* best, TimePoint candidate) {
  if (!*best || candidate < **best) *best = candidate;
}

std::string Seconds(Duration duration) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(duration).count()) + "s";
}

// The last end of a container that is started again.
void Tell(const Exit& exit, PodSeen* seen) {
  seen->last_exit_code = exit.code;
  seen->termination_message = exit.message;
}

}  // namespace

World::World(std::string job_uid, CrashLoop crash_loop)
    : job_uid_(std::move(job_uid)), crash_loop_(crash_loop) {}

Result<std::string> World::AddPod(const NewPod& wanted, TimePoint now) {
  if (pods_.contains(wanted.task)) {
    return AlreadyExists("pod " + wanted.name + ": is there already");
  }
  Pod pod{.restart_policy = wanted.restart_policy, .grace = wanted.grace, .start_at = now};
  pod.seen.name = wanted.name;
  pod.seen.uid = job_uid_ + "-pod-" + std::to_string(++made_);
  pod.seen.task = wanted.task;
  pod.seen.controller_uid = job_uid_;
  pod.seen.attempt = wanted.attempt;
  // In whole seconds, as in a cluster: what is compared with it is so too, a job's completion for
  // one.
  pod.seen.created = std::chrono::floor<std::chrono::seconds>(now);
  pod.seen.node = "localhost";
  pod.seen.node_state = reconcile::NodeState::kReady;
  std::string uid = pod.seen.uid;
  pods_.emplace(wanted.task, std::move(pod));
  return uid;
}

World::Pods::iterator World::Delete(Pods::iterator at, std::optional<Duration> grace,
                                    TimePoint now) {
  Pod& pod = at->second;
  if (!pod.running) return pods_.erase(at);
  const TimePoint due = now + grace.value_or(pod.grace);
  if (!pod.seen.delete_requested) {
    pod.seen.delete_requested = now;
    pod.seen.delete_due = due;
  } else {
    pod.seen.delete_due = std::min(*pod.seen.delete_due, due);
  }
  return ++at;
}

void World::DeletePod(const std::string& name, const std::string& uid,
                      std::optional<Duration> grace, TimePoint now) {
  for (auto at = pods_.begin(); at != pods_.end(); ++at) {
    if (at->second.seen.name != name || at->second.seen.uid != uid) continue;
    Delete(at, grace, now);
    return;
  }
}

void World::DeleteAll(std::optional<Duration> grace, TimePoint now) {
  for (auto at = pods_.begin(); at != pods_.end();) at = Delete(at, grace, now);
}

void World::DeleteWaiting(TimePoint now) {
  for (auto at = pods_.begin(); at != pods_.end();) {
    at = at->second.start_at ? Delete(at, {}, now) : std::next(at);
  }
}

std::vector<Order> World::TakeOrders(TimePoint now) {
  std::vector<Order> orders;
  for (auto& [task, pod] : pods_) {
    if (pod.start_at && *pod.start_at <= now) {
      orders.push_back({Order::Kind::kStart, pod.seen.uid});
      if (pod.ended) {
        ++pod.seen.restart_count;
        Tell(*pod.ended, &pod.seen);
        pod.ended.reset();
      }
      pod.start_at.reset();
      pod.running = true;
      pod.started = now;
      pod.seen.phase = PodPhase::kRunning;
      pod.seen.ready = true;
      pod.seen.waiting_reason.clear();
      pod.seen.waiting_message.clear();
    }
    if (!pod.running || !pod.seen.delete_requested) continue;
    if (now >= *pod.seen.delete_due) {
      if (!pod.told_to_die) orders.push_back({Order::Kind::kKill, pod.seen.uid});
      pod.told_to_end = pod.told_to_die = true;
    } else if (!pod.told_to_end) {
      orders.push_back({Order::Kind::kTerminate, pod.seen.uid});
      pod.told_to_end = true;
    }
  }
  return orders;
}

std::optional<TimePoint> World::next_order() const {
  std::optional<TimePoint> next;
  for (const auto& [task, pod] : pods_) {
    if (pod.start_at) Earliest(&next, *pod.start_at);
    if (!pod.running || !pod.seen.delete_requested) continue;
    if (!pod.told_to_end) Earliest(&next, *pod.seen.delete_requested);
    if (!pod.told_to_die) Earliest(&next, *pod.seen.delete_due);
  }
  return next;
}

void World::Ended(const std::string& uid, const Exit& exit, TimePoint now) {
  Pod* pod = Get(uid);
  if (pod == nullptr || !pod->running) return;
  pod->running = false;
  PodSeen& seen = pod->seen;
  if (seen.delete_requested) {
    pods_.erase(*seen.task);
    return;
  }
  seen.ready = false;
  const bool again = pod->restart_policy == api::kRestartAlways ||
                     (pod->restart_policy == api::kRestartOnFailure && exit.code != 0);
  if (!again) {
    seen.termination_message = exit.message;
    seen.phase = exit.code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
    seen.exit_code = exit.code;
    seen.exit_reason = exit.code == 0 ? "Completed" : "Error";
    seen.finished = now;
    return;
  }
  // As a kubelet shows it: the pod runs on, its container waits; how it ended is told once it waits
  // for a while, else with the restart that is counted then.
  pod->ended = exit;
  if (now - pod->started > crash_loop_.forgive) pod->crashes = 0;
  Duration wait{};
  if (pod->crashes > 0) {
    wait = crash_loop_.first;
    for (int i = 1; i < pod->crashes && wait < crash_loop_.longest; ++i) wait *= 2;
    wait = std::min(wait, crash_loop_.longest);
    Tell(exit, &seen);
    seen.waiting_reason = "CrashLoopBackOff";
    seen.waiting_message = "back-off " + Seconds(wait) + " restarting failed container";
  }
  ++pod->crashes;
  pod->start_at = now + wait;
}

reconcile::Observed World::Observe() const {
  reconcile::Observed out;
  for (const auto& [task, pod] : pods_) out.pods.push_back(pod.seen);
  for (const std::string& name : services_) {
    out.services.push_back({.name = name, .controller_uid = job_uid_});
  }
  return out;
}

const World::Pod* World::Get(const std::string& uid) const {
  for (const auto& [task, pod] : pods_) {
    if (pod.seen.uid == uid) return &pod;
  }
  return nullptr;
}

World::Pod* World::Get(const std::string& uid) {
  return const_cast<Pod*>(std::as_const(*this).Get(uid));
}

const PodSeen* World::Find(const std::string& uid) const {
  const Pod* pod = Get(uid);
  return pod == nullptr ? nullptr : &pod->seen;
}

const PodSeen* World::Find(TaskId task) const {
  const auto found = pods_.find(task);
  return found == pods_.end() ? nullptr : &found->second.seen;
}

bool World::Runs(const std::string& uid) const {
  const Pod* pod = Get(uid);
  return pod != nullptr && pod->running;
}

}  // namespace meshtrain::local
