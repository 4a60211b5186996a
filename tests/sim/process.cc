// The operator's processes of a simulated world: what they are told, look at and send.
#include <algorithm>

#include "tests/sim/world.h"

namespace meshtrain::sim {

using reconcile::PodPhase;
using reconcile::PodSeen;

void World::StartProcess(double delay) {
  process_ = 0;
  busy_ = false;
  After(delay, [this] {
    process_ = ++processes_;
    operator_skew_ = AnySkew();
    wake_at_.reset();
    refused_.reset();
    lost_child_.reset();
    refusals_in_a_row_ = 0;
    silent_since_.clear();
    delete_seen_.clear();
    starting_since_.clear();
    mounts_asked_.reset();
    answered_.clear();
    asked_.clear();
    lost_pods_.clear();
    failures_in_a_row_ = 0;
    cache_.clear();
    Log("operator " + std::to_string(process_) + " leads");
    Relist(process_);
  });
}

void World::ShowNodes() { Put(kNodesKey, {.nodes = nodes_}); }

void World::Relist(int process) {
  if (process != process_) return;
  blind_ = false;
  newest_delivered_ = 0;
  bool news = false;
  for (const auto& [key, versions] : objects_) {
    const auto [at, added] = cache_.try_emplace(key, versions.size() - 1);
    news = news || added || at->second != versions.size() - 1;
    at->second = versions.size() - 1;
  }
  if (!news) return;
  ++news_;
  Wake(0.001);
}

void World::Deliver(const std::string& key, size_t version, int process) {
  if (process != process_ || blind_) return;
  const int64_t at = objects_.at(key)[version].version;
  if (at < newest_delivered_) Fire("watch event out of order");
  newest_delivered_ = std::max(newest_delivered_, at);
  const auto [seen, added] = cache_.try_emplace(key, version);
  // A reflector never goes back behind what it has shown, and what is known wakes nobody.
  if (!added && version <= seen->second) return;
  seen->second = version;
  // The name of something that is gone may be free now.
  const Object& object = objects_.at(key)[version];
  if (!object.job && !object.pod && !object.service) refused_.reset();
  ++news_;
  Wake(0.001);
}

void World::Wake(double delay) {
  const int process = process_;
  if (process == 0) return;
  const TimePoint when = now_ + Seconds(delay);
  if (wake_at_ && *wake_at_ <= when) return;
  wake_at_ = when;
  const uint64_t id = ++wake_id_;
  After(delay, [=, this] {
    if (process != process_ || id != wake_id_) return;
    wake_at_.reset();
    Reconcile(process);
  });
}

reconcile::Observed World::Observe() {
  reconcile::Observed seen;
  nodes_decided_on_.reset();
  if (const auto nodes = cache_.find(kNodesKey); nodes != cache_.end()) {
    nodes_decided_on_ = nodes->second;
  }
  for (const auto& [key, version] : cache_) {
    const Object& object = objects_.at(key)[version];
    if (object.service && object.service->controller_uid != kForeignUid) {
      seen.services.push_back(*object.service);
    }
    if (!object.pod) continue;
    PodSeen pod = *object.pod;
    if (pod.delete_requested) {
      pod.delete_seen = delete_seen_.emplace(pod.uid, OperatorNow()).first->second;
    }
    if (pod.phase == PodPhase::kPending && !pod.node.empty()) {
      pod.starting_since = starting_since_.emplace(pod.uid, OperatorNow()).first->second;
    }
    if (!pod.node.empty()) {
      const Node& node = (*objects_.at(kNodesKey)[cache_.at(kNodesKey)].nodes)[NodeIndex(pod)];
      // A node that the watch lacks is asked for: it may have come back since.
      if (node.gone && nodes_[NodeIndex(pod)].gone) lost_pods_.insert(pod.uid);
      const bool lost = lost_pods_.contains(pod.uid);
      if (node.gone && !lost) Wake(5);
      pod.node_state = node.gone
                           ? lost ? reconcile::NodeState::kGone : reconcile::NodeState::kUnseen
                       : node.out_of_service ? reconcile::NodeState::kOutOfService
                       : node.ready          ? reconcile::NodeState::kReady
                                             : reconcile::NodeState::kNotReady;
      if (node.gone || node.ready) {
        silent_since_.erase(pod.node);
      } else {
        pod.node_not_ready_since = silent_since_.emplace(pod.node, OperatorNow()).first->second;
      }
    }
    seen.pods.push_back(std::move(pod));
  }
  std::shuffle(seen.pods.begin(), seen.pods.end(), random_);
  seen.refused = refused_;
  seen.lost_child = lost_child_;
  seen.mounts_asked = mounts_asked_;
  return seen;
}

void World::Reconcile(int process) {
  if (busy_) {
    again_ = true;
    return;
  }
  const auto at = cache_.find(kJobKey);
  if (at == cache_.end() || !objects_[kJobKey][at->second].job) {
    refused_.reset();
    lost_child_.reset();
    mounts_asked_.reset();
    return;
  }
  const api::TrainingJob cached = *objects_[kJobKey][at->second].job;
  ++reconciles_;
  const bool stale = std::any_of(objects_.begin(), objects_.end(), [&](const auto& entry) {
    const auto known = cache_.find(entry.first);
    return known == cache_.end() || known->second + 1 < entry.second.size();
  });
  if (stale) Fire("reconcile on a stale cache");
  busy_ = true;
  again_ = false;
  const TimePoint decided = OperatorNow();
  const reconcile::Outcome outcome = decide_(cached, Observe(), decided);
  if (outcome.wake_at) {
    Wake(std::chrono::duration<double>(*outcome.wake_at - OperatorNow()).count() + 1e-3);
  }
  bool failed = false;
  found_ = false;
  size_t i = 0;
  while (i < outcome.actions.size() && !failed) {
    std::vector<const reconcile::Action*> batch;
    const reconcile::Phase phase = outcome.actions[i].phase;
    for (; i < outcome.actions.size() && outcome.actions[i].phase == phase; ++i) {
      batch.push_back(&outcome.actions[i]);
    }
    std::shuffle(batch.begin(), batch.end(), random_);
    for (const reconcile::Action* action : batch) {
      if (std::holds_alternative<reconcile::RecordEvent>(action->write)) continue;
      bool alive = true;
      const Answer answer = Send(*action, cached, &alive);
      if (!alive || process != process_) return;  // this process is no more
      if (std::holds_alternative<reconcile::PatchStatus>(action->write)) ReadJobAnew();
      if (answer != Answer::kDone) failed = true;
    }
  }
  busy_ = false;
  if (!failed) {
    // Before its time what was refused was not asked for again, and stays refused.
    if (!refused_ || !refused_->retry_at || decided >= *refused_->retry_at) {
      refused_.reset();
      refusals_in_a_row_ = 0;
    }
    lost_child_.reset();
    if (reconcile::AsksForMounts(outcome)) mounts_asked_ = decided;
  }
  if (failed) {
    // As a rate limited work queue would.
    Wake(std::min(30.0, 0.01 * static_cast<double>(1 << std::min(++failures_in_a_row_, 12))));
  } else {
    failures_in_a_row_ = 0;
    // What was done is seen, and that wakes the job: it need not wake itself. A process that does
    // not read its own writes waits for their events.
    if (outcome.again || (found_ && !reads_its_writes_)) Wake(1);
  }
  if (again_) Wake(0.001);
}

// By rule 2 of reconcile.h the answer to a change of the status goes into the store, and without
// one the job is read anew. The store keeps what it has where that is newer.
void World::ReadJobAnew() {
  const std::vector<Object>& versions = objects_[kJobKey];
  size_t& known = cache_[kJobKey];
  if (versions.back().job && versions.back().version < versions[known].version) return;
  known = versions.size() - 1;
  Wake(0.001);
}

World::Answer World::Send(const reconcile::Action& action, const api::TrainingJob& cached,
                          bool* alive) {
  const reconcile::Write& write = action.write;
  const bool mounted = std::holds_alternative<reconcile::CreateSecret>(write) ||
                       std::holds_alternative<reconcile::CreateClaim>(write);
  if (mounted) {
    // As RepeatGuard has it: what was answered is done until something is told, or is repeated
    // after a second.
    const auto asked = asked_.find(ToString(write));
    if (asked != asked_.end()) {
      if (!action.repeat && asked->second.first == news_) return Answer::kDone;
      if (now_ - asked->second.second < Seconds(1)) return Answer::kUnavailable;
    }
  }
  ++writes_;
  const int process = process_;
  Log("> " + ToString(reconcile::Action{reconcile::Phase::kDecide, write}));
  const auto die = [&](const char* fault) {
    Fire(fault);
    Log(fault);
    StartProcess(Between(2, 20));
    *alive = false;
    return Answer::kDead;
  };
  // The world goes on while a request is under way.
  RunUntil(now_ + Seconds(Between(0.0005, 0.01)));
  if (process != process_) return Answer::kDead;
  if (writes_ == faults_.crash_after_write) {
    Do(write, cached);
    return die("operator dies after a write");
  }
  if (writes_ == faults_.unanswered_write) {
    Do(write, cached);
    Fire("answer lost");
    return Answer::kUnavailable;
  }
  if (Chance(faults_.write)) {
    switch (Below(7)) {
      case 0:
        Fire("429");
        return Answer::kUnavailable;
      case 1:
        Fire("5xx");
        return Answer::kUnavailable;
      case 2:
        Do(write, cached);
        Fire("answer lost");
        return Answer::kUnavailable;
      case 3:
        Do(write, cached);
        return die("operator dies after a write");
      case 4:
        return die("operator dies before a write");
      case 5:
        // On its way when its sender dies; over before the next one leads.
        After(Between(0.01, 1.5), [=, this, restores = restores_] {
          late_ = true;
          // It cannot know what an older revision took back meanwhile.
          blind_ = restores != restores_;
          Do(write, cached);
          late_ = blind_ = false;
        });
        return die("request arrives after its sender died");
      default:
        Fire("another writer changes the job");
        ChangeJob([](api::TrainingJob&) {}, false);
    }
  }
  const Answer answer = Do(write, cached);
  if (answer == Answer::kDone && mounted) asked_[ToString(write)] = {news_, now_};
  if (answer != Answer::kDone || mounted || !reads_its_writes_) return answer;
  // A store that takes the server's answers knows its own writes before the watch tells of them.
  std::string key;
  if (const auto* w = std::get_if<reconcile::CreatePod>(&write)) key = PodKey(w->name);
  if (const auto* w = std::get_if<reconcile::DeletePod>(&write)) key = PodKey(w->name);
  if (const auto* w = std::get_if<reconcile::CreateService>(&write)) key = kServiceKey + w->name;
  if (const auto at = objects_.find(key); at != objects_.end()) {
    // What is news wakes the job, as an event of a watch does.
    if (cache_.try_emplace(key, at->second.size()).first->second != at->second.size() - 1) {
      Wake(0.001);
    }
    cache_[key] = at->second.size() - 1;
  }
  if (!key.empty()) CheckRepeated(write, key);
  return answer;
}

}  // namespace meshtrain::sim
