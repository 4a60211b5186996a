// The API server of a simulated world, with its garbage collector and its etcd.
#include <algorithm>

#include "operator/api/json.h"
#include "operator/reconcile/children.h"
#include "tests/sim/world.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;
using testing_support::At;

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
  const bool watched = !key.starts_with(kSecretKey) && !key.starts_with(kClaimKey);
  if (process_ == 0 || blind_ || !watched) return;
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
  After(Between(0.05, 2), [=, this] { Stop(name, uid); });
}

// A claim stays, going, as long as pods on nodes mount it.
void World::DeleteClaim(const std::string& key) {
  const Object* object = Now(key);
  if (object == nullptr || !object->child || object->child->deleting) return;
  Object next = *object;
  next.child->deleting = true;
  Put(key, std::move(next));
  ReleaseClaim(key);
}

void World::ReleaseClaim(const std::string& key) {
  const Object* object = Now(key);
  if (object == nullptr || !object->child || !object->child->deleting) return;
  for (const auto& [other, versions] : objects_) {
    const auto& pod = versions.back().pod;
    if (!pod || !Live(*pod) || pod->node.empty()) continue;
    const auto mounts = mounts_.find(pod->uid);
    if (mounts == mounts_.end()) continue;
    if (std::find(mounts->second.begin(), mounts->second.end(), key) != mounts->second.end()) {
      return After(1, [=, this] { ReleaseClaim(key); });
    }
  }
  Put(key, {});
}

std::string World::OwnerOf(const Object& object) const {
  std::string owner;
  if (object.pod) owner = object.pod->controller_uid;
  if (object.service) owner = object.service->controller_uid;
  if (object.child) owner = object.child->owner;
  return owner == kForeignUid || owner == kFormerUid ? std::string() : owner;
}

void World::Collect() {
  std::vector<std::string> keys;
  for (const auto& [key, versions] : objects_) {
    const std::string owner = OwnerOf(versions.back());
    if (!owner.empty() && (job() == nullptr || job()->metadata.uid != owner)) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    const Object object = *Now(key);
    if (object.pod) {
      RequestDeletion(object.pod->name, object.pod->uid, 30);
    } else if (key.starts_with(kClaimKey)) {
      DeleteClaim(key);
    } else {
      Put(key, {});
    }
  }
}

void World::CollectSoon() {
  After(Between(0.05, 3), [this] { Collect(); });
}

void World::MakeAgain(double pause) {
  Fire("job deleted and made again");
  Log("the job is deleted");
  Put(kJobKey, {});
  CollectSoon();
  After(pause, [this] {
    if (job() != nullptr) return;  // brought back with an older revision
    api::TrainingJob again = first_job_;
    again.metadata.uid += "-" + std::to_string(++jobs_);
    if (calm_) again.spec.run_policy.suspend = false;
    Log("the job is made again, as " + again.metadata.uid);
    BeginLife(again);
    Put(kJobKey, {.job = std::move(again)});
  });
}

void World::KeepBackup() {
  Backup backup{.version = version_, .at = now_};
  for (const auto& [key, versions] : objects_) backup.objects[key] = versions.back();
  backups_.push_back(std::move(backup));
  if (backups_.size() > 60) backups_.pop_front();
}

// The API server answers from an older revision, and counts on from there. Watches end: what a
// process is told next is a list. The kubelets take up what they find.
void World::Restore(Backup backup) {
  Fire("etcd restored to an older revision");
  ++restores_;
  Log("etcd is set back to version " + std::to_string(backup.version));
  for (auto& [key, versions] : objects_) {
    if (key == kNodesKey) continue;  // told anew by each node within seconds
    const auto then = backup.objects.find(key);
    Object object = then == backup.objects.end() ? Object{} : then->second;
    if (object.version == versions.back().version) continue;
    versions.push_back(std::move(object));
  }
  version_ = backup.version;
  backups_.clear();
  answered_.clear();
  asked_.clear();
  std::vector<PodSeen> pods;
  for (const auto& [key, versions] : objects_) {
    if (versions.back().pod && !OwnerOf(versions.back()).empty()) {
      pods.push_back(*versions.back().pod);
    }
    const auto& child = versions.back().child;
    if (child && child->deleting) After(1, [this, key = key] { ReleaseClaim(key); });
  }
  for (const PodSeen& pod : pods) {
    odd_pods_.insert(pod.uid);
    TakeUpAgain(pod);
  }
  if (job() != nullptr) {
    lives_[job()->metadata.uid].succeeded =
        api::IsTrue(job()->status, api::ConditionType::kSucceeded);
  }
  CollectSoon();
  if (process_ == 0) return;
  blind_ = true;
  After(Between(0.5, 10), [this, process = process_] { Relist(process); });
}

// Does one write on the server as an API server would, and checks that it may be asked for at all.
World::Answer World::Do(const reconcile::Write& write, const api::TrainingJob& cached) {
  using namespace reconcile;  // NOLINT: the names of the writes
  const api::TrainingJob* current = job();
  const std::string& uid = cached.metadata.uid;
  const auto made = [&] {
    if (current == nullptr || current->metadata.uid != uid) CollectSoon();
    return Answer::kDone;
  };
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
    if (controller == uid) {
      found_ = true;
      return Answer::kDone;
    }
    if (service && controller == kForeignUid) Fire("name of the Service taken");
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
    Put(key, {.service = ServiceSeen{.name = w->name, .controller_uid = uid}});
    return made();
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
    if (lives_[uid].succeeded) {
      Violate("P2: " + w->name + " is created after the job was recorded as Succeeded");
    }
    const Object* service = Now(kServiceKey + cached.metadata.name);
    // What is made for a job that is no more is collected with it.
    const bool lives = current != nullptr && current->metadata.uid == uid;
    if (lives && !blind_ && (service == nullptr || !service->service)) {
      Violate(w->name + " is created before the job's Service");
    }
    if (w->task.role == Role::kWorker && w->task.index >= lives_[uid].most_workers) {
      Violate("more workers than were ever wanted");
    }
    PodSeen pod;
    pod.name = w->name;
    pod.uid = "pod-" + std::to_string(++uids_);
    pod.task = w->task;
    pod.controller_uid = pod.job_uid = cached.metadata.uid;
    pod.attempt = w->attempt;
    pod.created = std::chrono::floor<std::chrono::seconds>(ServerNow());
    pod.cluster = reconcile::ClusterStamp(cached, {});
    if (!cached.spec.program.empty()) {
      mounts_[pod.uid].push_back(kSecretKey + TokenSecret(cached).name);
    }
    if (cached.spec.checkpoint) {
      mounts_[pod.uid].push_back(kClaimKey + CheckpointClaim(cached).name);
    }
    if (faults_.chaos > 0 && !calm_ && Chance(0.1)) finalizers_.insert(pod.uid);
    if (!first_pod_) first_pod_ = std::chrono::duration<double>(now_ - At(0)).count();
    CheckCreation(pod);
    Put(key, {.pod = pod});
    After(Between(0.01, 1), [this, name = pod.name, uid = pod.uid] { Schedule(name, uid); });
    return made();
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
    if (w->grace_seconds == 0) CheckForce(pod, cached);
    CheckDeletion(*w, pod, cached);
    RequestDeletion(w->name, w->uid, w->grace_seconds ? 0 : 30);
    return Answer::kDone;
  }
  if (std::holds_alternative<AdoptPod>(write) || std::holds_alternative<ReleasePod>(write)) {
    Violate("P9: a foreign pod is adopted or released");
    return Answer::kDone;
  }
  if (const auto* w = std::get_if<PatchStatus>(&write)) {
    if (current == nullptr) return Answer::kDone;
    // A version that an older revision brought back may stand for something else.
    if (current->metadata.uid != uid && blind_) return Answer::kConflict;
    if (current->metadata.resource_version != w->resource_version) {
      Fire("409");
      return Answer::kConflict;
    }
    ++status_writes_;
    const api::Recovery& recovery = w->status.recovery;
    Log("  counted " + std::to_string(recovery.counted) + ", in place: told " +
        std::to_string(recovery.in_place.told) + ", past " +
        std::to_string(recovery.in_place.past));
    const api::TrainingJob before = *current;
    // Decided before an older revision came back, and this version stands for another by chance.
    if (blind_) lives_[uid].counted_blindly = true;
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
      if (current->metadata.resource_version != w->resource_version) {
        Fire("409");
        return Answer::kConflict;
      }
      // A version that an older revision brought back may stand for something else.
      if (!api::IsFinished(current->status) && !blind_) {
        Violate("a job that has not ended is deleted");
      }
      Put(kJobKey, {});
      Collect();
    }
    return Answer::kDone;
  }
  const auto lost = [&](std::string what) {
    if (!late_) {
      lost_child_ = LostChild{.what = std::move(what), .attempt = cached.status.recovery.attempt};
    }
    return Answer::kRefused;
  };
  if (const auto* w = std::get_if<CreateSecret>(&write)) {
    const std::string key = kSecretKey + w->name;
    const Object* token = Now(key);
    if (token != nullptr && token->child) return Answer::kDone;  // ours by its name
    if (!w->probe) {
      Put(key, {.child = Child{.owner = uid}});
      return made();
    }
    Fire("a probe finds the token missing");
    return lost("secret");
  }
  if (const auto* w = std::get_if<CreateClaim>(&write)) {
    const std::string key = kClaimKey + w->name;
    const Object* claim = Now(key);
    if (claim == nullptr || !claim->child) {
      Put(key, {.child = Child{.owner = uid}});
      return made();
    }
    if (!claim->child->deleting) return Answer::kDone;
    Fire("the claim is found to be going away");
    return lost("claim");
  }
  return Answer::kDone;  // maps
}

}  // namespace meshtrain::sim
