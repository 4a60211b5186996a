#include "tests/sim/world.h"

#include <algorithm>

#include "operator/api/json.h"
#include "operator/reconcile/children.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {
namespace {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;
using testing_support::At;

Duration Seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}
std::string PodKey(const std::string& name) { return "pod/" + name; }
const std::string kJobKey = "job";
const std::string kForeignUid = "somebody-else";
const std::string kServiceKey = "service/";
const std::string kNodesKey = "nodes";

const std::string kFormerUid = "a-former-job";
const std::string kTokenKey = "secret/token";

bool Live(const PodSeen& pod) {
  return pod.phase == PodPhase::kPending || pod.phase == PodPhase::kRunning;
}

}  // namespace

World::World(uint64_t seed, Faults faults, api::TrainingJob job)
    : random_(seed),
      faults_(faults),
      now_(At(0)),
      nodes_(3),
      reads_its_writes_(seed % 2 == 1),
      skewed_(faults.chaos > 0 && seed % 3 == 0) {
  server_skew_ = AnySkew();
  for (Node& node : nodes_) node.skew = AnySkew();
  deadline_possible_ = job.spec.run_policy.active_deadline_seconds.has_value() ||
                       job.spec.run_policy.startup_deadline_seconds.has_value();
  most_workers_ = api::Replicas(job.spec, Role::kWorker);
  const std::string name = job.metadata.name;
  ShowNodes();
  Put(kJobKey, {.job = std::move(job)});
  // Pods that are not ours: one of another controller with our labels, one of our naming scheme
  // with none of them.
  PodSeen other;
  other.name = name + "-worker-99";
  other.uid = "foreign-1";
  other.task = TaskId{Role::kWorker, 99};
  other.controller_uid = kForeignUid;
  other.phase = PodPhase::kRunning;
  Put(PodKey(other.name), {.pod = other});
  other.name = "unrelated";
  other.uid = "foreign-2";
  other.controller_uid.clear();
  other.matches_selector = true;
  Put(PodKey(other.name), {.pod = other});
}

bool World::Chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}
int World::Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
double World::Between(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

Duration World::AnySkew() {
  if (!skewed_) return {};
  Fire("clocks differ");
  return std::chrono::floor<std::chrono::seconds>(Seconds(Between(-3600, 3600)));
}

void World::Log(const std::string& line) {
  if (!keep_log_) return;
  const double at = std::chrono::duration<double>(now_ - At(0)).count();
  log_.push_back(std::to_string(at) + " " + line);
}

void World::After(double seconds, Event event) {
  events_.emplace(std::pair(now_ + Seconds(seconds), ++order_), std::move(event));
}

void World::RunUntil(TimePoint when) {
  while (!events_.empty() && events_.begin()->first.first <= when) {
    auto node = events_.extract(events_.begin());
    now_ = std::max(now_, node.key().first);
    node.mapped()();
  }
  now_ = std::max(now_, when);
}

void World::Violate(const std::string& what) {
  Log("VIOLATION " + what);
  violations_.push_back(what);
}

const api::TrainingJob* World::job() const {
  const Object* object = Now(kJobKey);
  return object != nullptr && object->job ? &*object->job : nullptr;
}

std::vector<std::string> World::Pods() const {
  std::vector<std::string> out;
  for (const auto& [key, versions] : objects_) {
    const auto& pod = versions.back().pod;
    if (!pod || pod->controller_uid == kForeignUid || pod->controller_uid == kFormerUid ||
        pod->controller_uid.empty()) {
      continue;
    }
    out.push_back(pod->name + " " + std::to_string(static_cast<int>(pod->phase)));
  }
  return out;
}

// --- API server
// -----------------------------------------------------------------------------------------------------------

const World::Object* World::Now(const std::string& key) const {
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : &found->second.back();
}

void World::Put(const std::string& key, Object object) {
  ++version_;
  if (object.job) object.job->metadata.resource_version = std::to_string(version_);
  object.version = version_;
  auto& history = objects_[key];
  history.push_back(std::move(object));
  if (process_ == 0) return;
  const size_t version = history.size() - 1;
  const int process = process_;
  double lag = Between(0.0005, 0.02);
  if (Chance(faults_.watch)) {
    switch (Below(3)) {
      case 0:
        // What a watch that broke has not told, the list brings that is made after its back-off.
        // The operator asks for no list without such a cause.
        Fire("watch event dropped");
        return After(Between(0.8, 30), [=, this] { Relist(process); });
      case 1:
        Fire("watch event delayed");
        lag = Between(0.1, 15);
        break;
      default:
        Fire("watch event doubled");
        After(Between(0.0005, 5), [=, this] { Deliver(key, version, process); });
    }
  }
  After(lag, [=, this] { Deliver(key, version, process); });
}

void World::ChangePod(const std::string& name, const std::string& uid,
                      const std::function<void(PodSeen&)>& change) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid) return;
  Object next = *object;
  change(*next.pod);
  Put(PodKey(name), std::move(next));
}

void World::ChangeJob(const std::function<void(api::TrainingJob&)>& change, bool spec) {
  const Object* object = Now(kJobKey);
  if (object == nullptr || !object->job) return;
  Object next = *object;
  change(*next.job);
  if (spec) ++next.job->metadata.generation;
  Put(kJobKey, std::move(next));
}

void World::RemovePod(const std::string& name, const std::string& uid) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid) return;
  if (!finalizers_.contains(uid)) return Put(PodKey(name), {});
  Fire("a finalizer holds a pod");
  ChangePod(name, uid, [&](PodSeen& pod) {
    if (!pod.delete_requested) pod.delete_requested = ServerNow();
    pod.delete_due = pod.delete_requested;
  });
  After(Between(1, 60), [=, this] {
    finalizers_.erase(uid);
    RemovePod(name, uid);
  });
}

void World::RequestDeletion(const std::string& name, const std::string& uid, double grace) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid) return;
  const bool bound = !object->pod->node.empty();
  if (grace == 0 || !bound) return RemovePod(name, uid);
  if (object->pod->delete_requested) return;
  ChangePod(name, uid, [&](PodSeen& pod) {
    pod.delete_requested = ServerNow();
    pod.delete_due = ServerNow() + Seconds(grace);
  });
  // The kubelet stops the process and lets the object go, if it lives then.
  const auto stop = [=, this](const auto& self) -> void {
    const Object* seen = Now(PodKey(name));
    if (seen == nullptr || !seen->pod || seen->pod->uid != uid) return;
    const Node& node = nodes_[static_cast<size_t>(seen->pod->node.back() - '0')];
    if (!node.up) return After(5, [=] { self(self); });
    if (Live(*seen->pod)) {
      ChangePod(name, uid, [&](PodSeen& pod) {
        pod.phase =
            Below(3) == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;  // some programs leave with 0
        pod.exit_code = pod.phase == PodPhase::kSucceeded ? 0 : 143;
        pod.finished = now_ + node.skew;
      });
    }
    After(Between(0.01, 0.5), [=, this] { RemovePod(name, uid); });
  };
  After(Between(0.05, 2), [=] { stop(stop); });
}

// --- kubelet
// --------------------------------------------------------------------------------------------------------------

void World::Schedule(const std::string& name, const std::string& uid) {
  std::vector<size_t> up;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].ready && nodes_[i].up && !nodes_[i].gone) up.push_back(i);
  }
  if (up.empty()) return After(2, [=, this] { Schedule(name, uid); });
  const size_t node = up[static_cast<size_t>(Below(static_cast<int>(up.size())))];
  ChangePod(name, uid, [&](PodSeen& pod) {
    pod.node = "node-" + std::to_string(node);
    // By the operator's clock: an hour's wait for the word that a pod starts slowly is no error.
    pod.scheduled = OperatorNow();
  });
  After(Between(0.1, 3), [=, this] { Start(name, uid); });
}

void World::Start(const std::string& name, const std::string& uid) {
  const Object* object = Now(PodKey(name));
  if (object == nullptr || !object->pod || object->pod->uid != uid ||
      object->pod->delete_requested) {
    return;
  }
  if (!Live(*object->pod)) return;
  if (!nodes_[static_cast<size_t>(object->pod->node.back() - '0')].up) {
    return After(3, [=, this] { Start(name, uid); });
  }
  if (mounts_token_.contains(uid)) {
    // As the kubelet does: it tries again until what is to be mounted is there.
    const Object* token = Now(kTokenKey);
    if (token == nullptr || !token->secret) {
      Fire("a pod waits for the token that it mounts");
      return After(Between(1, 5), [=, this] { Start(name, uid); });
    }
    tokens_[uid] = token->version;
    CheckToken(*object->pod);
  }
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
  if (!nodes_[static_cast<size_t>(object->pod->node.back() - '0')].up) {
    return After(3, [=, this] { End(name, uid); });
  }
  const bool fails = !calm_ && Chance(faults_.pod);
  if (!fails && !Decides(*object->pod)) return After(Between(5, 40), [=, this] { End(name, uid); });
  if (!fails) {
    if (*object->pod->task == api::Leader(job()->spec)) leader_finished_ = true;
    return ChangePod(name, uid, [&](PodSeen& pod) {
      pod.phase = PodPhase::kSucceeded;
      pod.exit_code = 0;
      pod.finished = now_ + nodes_[static_cast<size_t>(pod.node.back() - '0')].skew;
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
  ++job_failures_;
  Log(name + " ends with " + std::to_string(exit_code));
  if (MayRestartInPlace(*Now(PodKey(name))->pod)) {
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

void World::KillAt(double second, const std::string& name, int exit_code) {
  After(second, [=, this] {
    const Object* object = Now(PodKey(name));
    if (object != nullptr && object->pod && object->pod->phase == PodPhase::kRunning &&
        !object->pod->delete_requested) {
      Fail(name, object->pod->uid, exit_code, "Error");
    }
  });
}

void World::EvictAt(double second, const std::string& name) {
  After(second, [=, this] {
    const Object* object = Now(PodKey(name));
    if (object == nullptr || !object->pod || object->pod->phase != PodPhase::kRunning) return;
    Log("evict " + name);
    ChangePod(name, object->pod->uid, [&](PodSeen& pod) {
      pod.phase = PodPhase::kFailed;
      pod.reason = "Evicted";
      pod.finished = now_;
    });
  });
}

void World::SuspendAt(double second, bool suspended) {
  After(second, [=, this] {
    Log(suspended ? "suspend" : "resume");
    ChangeJob([&](api::TrainingJob& job) { job.spec.run_policy.suspend = suspended; }, true);
  });
}

void World::RefuseServiceUntil(double second, Refusal refusal) {
  const std::string key = kServiceKey + job()->metadata.name;
  if (refusal == Refusal::kQuota) {
    service_quota_ = true;
  } else {
    Put(key, {.service = reconcile::ServiceSeen{.name = job()->metadata.name,
                                                .controller_uid = kForeignUid}});
  }
  After(second, [=, this] {
    const bool storm = faults_.write > 0 || faults_.chaos > 0 ||
                       faults_.crash_after_write + faults_.unanswered_write > 0;
    if (!storm && !Pods().empty()) {
      Violate("the Service is refused, and " + Pods().front() + " is there");
    }
    if (!storm && !api::IsTrue(job()->status, api::ConditionType::kWaiting)) {
      Violate("waits without saying so");
    }
    Log("the Service may be made");
    service_quota_ = false;
    if (refusal == Refusal::kNameTaken) Put(key, {});
  });
}

void World::HoldNamesUntil(double second) {
  const std::string name = job()->metadata.name;
  const api::Spec spec = job()->spec;
  reconcile::ServiceSeen service{
      .name = name, .uid = "former", .controller_uid = kFormerUid, .deleting = true};
  Put(kServiceKey + name, {.service = service});
  std::vector<std::string> held;
  for (const auto& [role, replica] : spec.replica_specs) {
    if (replica.replicas < 1) continue;
    PodSeen pod;
    pod.name = cluster::PodName(name, {role, 0});
    pod.uid = "former-" + pod.name;
    pod.task = TaskId{role, 0};
    pod.controller_uid = kFormerUid;
    pod.phase = PodPhase::kSucceeded;
    pod.delete_requested = pod.delete_due = ServerNow() - Seconds(5);
    Put(PodKey(pod.name), {.pod = pod});
    held.push_back(PodKey(pod.name));
  }
  After(second, [=, this] {
    Fire("names of a former job are released");
    Log("names are released");
    Put(kServiceKey + name, {});
    for (const std::string& key : held) Put(key, {});
  });
}

// --- operator
// -------------------------------------------------------------------------------------------------------------

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
    answered_.clear();
    failures_in_a_row_ = 0;
    cache_.clear();
    Log("operator " + std::to_string(process_) + " leads");
    Relist(process_);
    SendBookmarkOfNodes(process_);
  });
}

void World::ShowNodes() { Put(kNodesKey, {.nodes = nodes_}); }

// About once a minute, and never ahead of an event that is under way.
void World::SendBookmarkOfNodes(int process) {
  After(Between(50, 70), [=, this] {
    if (process != process_) return;
    if (cache_[kNodesKey] + 1 == objects_[kNodesKey].size()) {
      nodes_seen_ = version_;
      if (node_unsure_) Wake(0.001);
    }
    SendBookmarkOfNodes(process);
  });
}

void World::Relist(int process) {
  if (process != process_) return;
  bool news = node_unsure_;
  for (const auto& [key, versions] : objects_) {
    const auto [at, added] = cache_.try_emplace(key, versions.size() - 1);
    news = news || added || at->second != versions.size() - 1;
    at->second = versions.size() - 1;
  }
  nodes_seen_ = version_;
  if (news) Wake(0.001);
}

void World::Deliver(const std::string& key, size_t version, int process) {
  if (process != process_) return;
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
  if (key == kNodesKey) nodes_seen_ = std::max(nodes_seen_, at);
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
  node_unsure_ = false;
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
    if (!pod.node.empty()) {
      const Node& node = (*objects_.at(kNodesKey)[cache_.at(kNodesKey)]
                               .nodes)[static_cast<size_t>(pod.node.back() - '0')];
      // As the store has it: a node that is not there may be newer than what is known of nodes.
      const bool unsure = node.gone && nodes_seen_ < object.version;
      node_unsure_ = node_unsure_ || unsure;
      pod.node_state = unsure                ? reconcile::NodeState::kUnseen
                       : node.gone           ? reconcile::NodeState::kGone
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
  return seen;
}

void World::Reconcile(int process) {
  if (busy_) {
    again_ = true;
    return;
  }
  const auto at = cache_.find(kJobKey);
  if (at == cache_.end() || !objects_[kJobKey][at->second].job) return;
  const api::TrainingJob cached = *objects_[kJobKey][at->second].job;
  ++reconciles_;
  const bool stale = std::any_of(objects_.begin(), objects_.end(), [&](const auto& entry) {
    const auto known = cache_.find(entry.first);
    return known == cache_.end() || known->second + 1 < entry.second.size();
  });
  if (stale) Fire("reconcile on a stale cache");
  busy_ = true;
  again_ = false;
  const reconcile::Outcome outcome = reconcile::Reconcile(cached, Observe(), OperatorNow());
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
      const Answer answer = Send(action->write, cached, &alive);
      if (!alive || process != process_) return;  // this process is no more
      // By rule 2 of reconcile.h the answer goes into the store, and without one the job is read
      // anew.
      if (std::holds_alternative<reconcile::PatchStatus>(action->write)) {
        cache_[kJobKey] = objects_[kJobKey].size() - 1;
        Wake(0.001);
      }
      if (answer != Answer::kDone) failed = true;
    }
  }
  busy_ = false;
  if (!failed) {
    refused_.reset();
    lost_child_.reset();
    refusals_in_a_row_ = 0;
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

World::Answer World::Send(const reconcile::Write& write, const api::TrainingJob& cached,
                          bool* alive) {
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
        After(Between(0.01, 1.5), [=, this] {
          late_ = true;
          Do(write, cached);
          late_ = false;
        });
        return die("request arrives after its sender died");
      default:
        Fire("another writer changes the job");
        ChangeJob([](api::TrainingJob&) {}, false);
    }
  }
  const Answer answer = Do(write, cached);
  if (answer != Answer::kDone || !reads_its_writes_) return answer;
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
  if (late_) {
    late_pods_.insert(pod.uid);
    return;
  }
  if (!reads_its_writes_) return;  // does not know what it made itself
  for (const auto& [key, versions] : objects_) {
    const auto& other = versions.back().pod;
    if (!other || other->controller_uid != pod.controller_uid || other->uid == pod.uid) continue;
    if (!Live(*other) || late_pods_.contains(other->uid)) continue;
    if (other->cluster != pod.cluster) {
      Violate("P6: " + pod.name + " and " + other->name + " know different clusters");
    }
  }
}

// Processes of a job hold the same token. One whose pod is going is none of its peers any more.
void World::CheckToken(const PodSeen& pod) {
  if (!reads_its_writes_ || late_pods_.contains(pod.uid)) return;
  for (const auto& [key, versions] : objects_) {
    const auto& other = versions.back().pod;
    if (!other || other->controller_uid != pod.controller_uid || other->uid == pod.uid) continue;
    if (!Live(*other) || other->delete_requested || late_pods_.contains(other->uid) ||
        !tokens_.contains(other->uid)) {
      continue;
    }
    if (tokens_[other->uid] != tokens_[pod.uid]) {
      Violate(pod.name + " and " + other->name + " hold different tokens");
    }
  }
}

// Processes may live on where nobody knows better, and the user has not said how long is enough.
void World::CheckForce(const PodSeen& pod, const api::TrainingJob& cached) {
  if (pod.node.empty() || late_) return;
  const size_t index = static_cast<size_t>(pod.node.back() - '0');
  if (!nodes_decided_on_) return Violate("P1: " + pod.name + " is deleted by force, unseen");
  const Node& node = (*objects_.at(kNodesKey)[*nodes_decided_on_].nodes)[index];
  if (node.gone || node.out_of_service) return;
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
  if (api::IsTrue(before.status, ConditionType::kSucceeded) && !succeeded) {
    Violate("P2: Succeeded was taken back");
  }
  if (api::IsTrue(before.status, ConditionType::kFailed) && !failed) {
    Violate("Failed was taken back");
  }
  if (succeeded && before.metadata.uid == job()->metadata.uid) succeeded_ = true;
  if (succeeded && !leader_finished_) {
    Violate("Succeeded, but the leader never finished: it was only told to stop");
  }
  const int32_t counted = next.recovery.counted + next.recovery.in_place.total();
  if (counted > job_failures_) {
    Violate("counted " + std::to_string(counted) + " restarts, but only " +
            std::to_string(job_failures_) + " processes failed");
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
    if (deadline ? !deadline_possible_ : job_failures_ == 0) {
      Violate("Failed (" + reason + ") though no process had failed: only disruptions happened");
    }
  }
  if (api::StatusToJson(next).size() > 8192) Violate("status larger than 8 kB");
  for (const auto& [type, condition] : next.conditions) {
    if (condition.reason.empty()) Violate("a condition without a reason");
  }
}

// Does one write on the server as an API server would, and checks that it may be asked for at all.
World::Answer World::Do(const reconcile::Write& write, const api::TrainingJob& cached) {
  using namespace reconcile;  // NOLINT: the names of the writes
  const api::TrainingJob* current = job();
  const auto refuse = [&](std::string what, std::string reason, std::string message) {
    const double wait = std::min(60.0, static_cast<double>(1 << std::min(refusals_in_a_row_, 6)));
    if (!late_) {
      ++refusals_in_a_row_;
      refused_ = RefusedWrite{.what = std::move(what),
                              .reason = std::move(reason),
                              .message = std::move(message),
                              .retry_at = OperatorNow() + Seconds(wait)};
    }
    return Answer::kRefused;
  };
  const auto taken = [&](const std::string& controller, bool service = false) {
    if (controller == cached.metadata.uid) {
      found_ = true;
      return Answer::kDone;
    }
    if (service) Fire("name of the Service taken");
    return refuse("object", "AlreadyExists", "is there, and is not ours");
  };
  if (const auto* w = std::get_if<CreateService>(&write)) {
    const std::string key = kServiceKey + w->name;
    if (const Object* object = Now(key); object != nullptr && object->service) {
      return taken(object->service->controller_uid, true);
    }
    if (service_quota_) {
      Fire("quota of Services");
      return refuse("services \"" + w->name + "\"", "Forbidden", "exceeded quota");
    }
    Put(key, {.service = ServiceSeen{.name = w->name, .controller_uid = cached.metadata.uid}});
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<CreatePod>(&write)) {
    const std::string key = PodKey(w->name);
    if (const Object* object = Now(key); object != nullptr && object->pod) {
      return taken(object->pod->controller_uid);
    }
    if (quota_) {
      Fire("quota");
      return refuse("pods \"" + w->name + "\"", "Forbidden", "exceeded quota");
    }
    if (succeeded_) {
      Violate("P2: " + w->name + " is created after the job was recorded as Succeeded");
    }
    const Object* service = Now(kServiceKey + cached.metadata.name);
    if (service == nullptr || !service->service) {
      Violate(w->name + " is created before the job's Service");
    }
    if (w->task.role == Role::kWorker && w->task.index >= most_workers_) {
      Violate("more workers than were ever wanted");
    }
    PodSeen pod;
    pod.name = w->name;
    pod.uid = "pod-" + std::to_string(++uids_);
    pod.task = w->task;
    pod.controller_uid = cached.metadata.uid;
    pod.attempt = w->attempt;
    pod.created = std::chrono::floor<std::chrono::seconds>(ServerNow());
    pod.cluster = reconcile::ClusterStamp(cached, {});
    if (!cached.spec.program.empty()) mounts_token_.insert(pod.uid);
    if (faults_.chaos > 0 && !calm_ && Chance(0.1)) finalizers_.insert(pod.uid);
    if (!first_pod_) first_pod_ = std::chrono::duration<double>(now_ - At(0)).count();
    CheckCreation(pod);
    Put(key, {.pod = pod});
    After(Between(0.01, 1), [this, name = pod.name, uid = pod.uid] { Schedule(name, uid); });
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<DeletePod>(&write)) {
    const Object* object = Now(PodKey(w->name));
    if (object == nullptr || !object->pod || object->pod->uid != w->uid) {
      return Answer::kDone;  // gone, or another
    }
    const PodSeen& pod = *object->pod;
    if (pod.controller_uid != cached.metadata.uid) {
      Violate("P9: " + w->name + " is not ours to delete");
    }
    const Node* node =
        pod.node.empty() ? nullptr : &nodes_[static_cast<size_t>(pod.node.back() - '0')];
    const bool silent = node != nullptr && (!node->up || node->gone || !node->ready);
    if (w->grace_seconds == 0) CheckForce(pod, cached);
    const bool wanted = pod.task->index < api::Replicas(cached.spec, pod.task->role);
    // Pods go while their Service is refused, even those that started before the deletion came.
    const Object* service = Now(kServiceKey + cached.metadata.name);
    const bool served = service != nullptr && service->service &&
                        service->service->controller_uid == cached.metadata.uid;
    if (served && pod.phase == PodPhase::kRunning && wanted && !silent &&
        !api::IsFinished(cached.status) && !cached.spec.run_policy.suspend && current != nullptr &&
        pod.attempt >= current->status.recovery.attempt) {
      // With RestartAll, or a node that came back, pods of earlier attempts go; the newest never
      // do.
      if (w->grace_seconds != 0) Violate("P4: " + w->name + " runs well and is deleted");
    }
    RequestDeletion(w->name, w->uid, w->grace_seconds ? 0 : 30);
    return Answer::kDone;
  }
  if (std::holds_alternative<AdoptPod>(write) || std::holds_alternative<ReleasePod>(write)) {
    Violate("P9: a foreign pod is adopted or released");
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<PatchStatus>(&write)) {
    if (current == nullptr) return Answer::kDone;
    if (current->metadata.resource_version != w->resource_version) {
      Fire("409");
      return Answer::kConflict;
    }
    ++status_writes_;
    const api::TrainingJob before = *current;
    CheckStatus(before, w->status);
    // What the server hands out went through JSON.
    api::TrainingJob next = before;
    next.status = w->status;
    const auto again = api::FromJson(api::ToJson(next));
    if (!again.ok() || again->status != w->status) Violate("the status does not survive JSON");
    ChangeJob([&](api::TrainingJob& server) { server.status = w->status; }, false);
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<DeleteJob>(&write)) {
    if (current != nullptr && current->metadata.uid == w->uid) {
      if (!api::IsFinished(current->status)) Violate("a job that has not ended is deleted");
      Put(kJobKey, {});
      // The garbage collector.
      std::vector<std::pair<std::string, std::string>> pods;
      for (const auto& [key, versions] : objects_) {
        if (versions.back().pod && versions.back().pod->controller_uid == w->uid) {
          pods.emplace_back(versions.back().pod->name, versions.back().pod->uid);
        }
      }
      for (const auto& [name, uid] : pods) RequestDeletion(name, uid, 30);
    }
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<CreateSecret>(&write)) {
    const Object* token = Now(kTokenKey);
    if (token != nullptr && token->secret) return Answer::kDone;  // ours by its name
    if (!w->probe) {
      Put(kTokenKey, {.secret = true});
      return Answer::kDone;
    }
    Fire("a probe finds the token missing");
    if (!late_) {
      lost_child_ = LostChild{.what = "secret", .attempt = cached.status.recovery.attempt};
    }
    return Answer::kRefused;
  }
  return Answer::kDone;  // claims, maps
}

}  // namespace meshtrain::sim
