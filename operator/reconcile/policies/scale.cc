// Children that are missing, and children that are too many.
#include <algorithm>
#include <set>
#include <string>

#include "operator/reconcile/children.h"
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

constexpr std::chrono::minutes kAskForMountsAgain{5};

enum class Names : uint8_t { kFree, kTaken };

// Who has a name that we need. What is seen has our labels: without an owner, it was left behind.
std::string Holder(const std::string& controller_uid) {
  return controller_uid.empty()
             ? "has no owner: a former job left it when it was deleted with --cascade=orphan"
             : "belongs to another";
}

// Asks for the Services that are missing; a foreign one of a name that we need blocks the job.
Names Services(const View& view, bool may_ask, Draft* draft) {
  const auto seen = [&](const std::string& name) {
    return std::find_if(view.seen.services.begin(), view.seen.services.end(),
                        [&](const ServiceSeen& service) { return service.name == name; });
  };
  const std::string& uid = view.job.metadata.uid;
  const bool legacy = view.job.spec.tf_config_compat == api::kCompatKubeflowV1;
  // The common case without formatting: one Service, and it is ours.
  if (const auto found = seen(view.job.metadata.name);
      !legacy && found != view.seen.services.end() && found->controller_uid == uid &&
      !found->deleting) {
    return Names::kFree;
  }
  Names names = Names::kFree;
  std::set<std::string> wanted;
  for (CreateService& service : WantedServices(view.job)) {
    wanted.insert(service.name);
    const auto found = seen(service.name);
    if (found == view.seen.services.end()) {
      if (may_ask) draft->Add(Phase::kPrepare, std::move(service), "pods are found by it");
    } else if (found->deleting) {
      draft->Wait(Reason::kNameHeld, "the Service " + service.name + " is still going away");
      names = Names::kTaken;
    } else if (found->controller_uid != uid) {
      draft->Wait(Reason::kNameTaken,
                  "a Service of the name " + service.name + " " + Holder(found->controller_uid));
      names = Names::kTaken;
    }
  }
  for (const ServiceSeen& service : view.seen.services) {
    // A name that a replica of this job had; what the user hung on the job under another name is
    // the user's.
    const bool ours = service.controller_uid == uid && !service.deleting &&
                      service.name.starts_with(view.job.metadata.name + "-");
    if (ours && !wanted.contains(service.name)) {
      draft->Add(Phase::kRemove, DeleteService{.name = service.name, .uid = service.uid},
                 "its replica is wanted no more");
    }
  }
  return names;
}

// Pods that are wanted and not there. A name that another holds is waited for: its release wakes
// the job.
std::vector<CreatePod> Missing(const View& view, Draft* draft) {
  std::vector<CreatePod> missing;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const TaskId task{role, i};
      if (view.Ours(task) != nullptr || view.orphans.contains(task)) continue;
      const std::string name = cluster::PodName(view.job.metadata.name, task);
      if (const auto other = view.foreign.find(name); other != view.foreign.end()) {
        const bool going = other->second->delete_requested.has_value();
        draft->Wait(going ? Reason::kNameHeld : Reason::kNameTaken,
                    "the pod " + name + " " +
                        (going ? "of a former job is still going away"
                               : Holder(other->second->controller_uid)));
        continue;
      }
      missing.push_back({.name = name, .task = task, .attempt = draft->next.recovery.attempt});
    }
  }
  return missing;
}

// What pods mount. All of it may be asked for again: what is there stays as it is.
// `repeat`: as Action::repeat.
void Mounted(const View& view, const char* why, bool repeat, Draft* draft) {
  const auto ask = [&](Write write) {
    draft->Add(Phase::kPrepare, std::move(write), why);
    draft->actions.back().repeat = repeat;
  };
  const api::Spec& spec = view.job.spec;
  // Whether pods that stay hold what pods made now would mount. If somebody deleted it, it is not
  // made beside them: another token would keep new processes apart from those that have the first.
  const auto held = [&](const std::optional<std::string>& stamp) {
    return std::any_of(view.ours.begin(), view.ours.end(), [&](const auto& entry) {
      const PodSeen& pod = *entry.second;
      return !pod.delete_requested && pod.phase != PodPhase::kSucceeded &&
             pod.phase != PodPhase::kFailed &&
             pod.attempt >= draft->next.recovery.restart_all_below &&
             (!stamp || pod.cluster == *stamp);
    });
  };
  if (!spec.program.empty()) ask(TokenSecret(view.job, /*probe=*/held(std::nullopt)));
  if (Sealed(view.job, view.seen.settings)) {
    // Only pods of this cluster's stamp hold it.
    const bool probe = held(ClusterStamp(view.job, view.seen.settings));
    ask(TlsSecret(view.job, view.seen.settings, probe));
  }
  if (spec.checkpoint && !spec.checkpoint->volume_claim_template.empty()) {
    ask(CheckpointClaim(view.job));
  }
  if (NeedsClusterFile(view.job, view.seen.settings)) {
    // Where workers come and go alone, those that stay may hold the map of another time.
    const bool probe =
        !ElasticBesideServers(view.job) && held(ClusterStamp(view.job, view.seen.settings));
    ask(ClusterMap(view.job, view.seen.settings, probe));
  }
}

// A pod that does not start may lack what it mounts, and no watch tells of that: so it is asked for
// when a pod becomes slow, and now and then while one stays so.
void LookAfterMounts(const View& view, Draft* draft) {
  std::optional<TimePoint> slow;  // since when the last of the slow pods is so
  for (const auto& [task, pod] : view.ours) {
    const auto from = SlowFrom(*pod);
    if (from && *from <= view.now) slow = std::max(slow.value_or(*from), *from);
  }
  if (!slow) return;
  const auto& asked = view.seen.mounts_asked;
  if (asked && *slow <= *asked && *asked <= view.now) {
    const TimePoint due = *asked + Duration(kAskForMountsAgain);
    if (view.now < due) return draft->WakeAt(due);
  }
  Mounted(view, "a pod that mounts it does not start", /*repeat=*/true, draft);
}

}  // namespace

void Children(const View& view, bool may_create, Draft* draft) {
  for (const auto& [task, pod] : view.orphans) {
    if (!view.Wanted(task)) continue;
    draft->Add(Phase::kRemove, AdoptPod{.name = pod->name, .uid = pod->uid},
               "it was made for this job and has no controller");
  }
  for (const PodSeen* pod : view.strays) {
    draft->Add(Phase::kRemove, ReleasePod{.name = pod->name, .uid = pod->uid},
               "our labels were taken from it");
  }
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task)) {
      Remove(view, *pod, "the job was scaled down", draft);
    } else if (pod->delete_requested) {
      Remove(view, *pod, "its node will not answer", draft);
    }
  }

  const bool may_ask = MayAsk(view, draft);
  const Names names = Services(view, may_ask, draft);
  std::vector<CreatePod> missing = Missing(view, draft);
  if (names == Names::kTaken || !may_create || !may_ask) return;
  if (missing.empty()) return LookAfterMounts(view, draft);
  if (api::IsTrue(draft->next, ConditionType::kRestarting)) {
    if (const auto pace = NextAttempt(draft->next, view.now); pace && view.now < pace->due) {
      draft->Wait(Reason::kRestartBackoff,
                  "the next restart waits until " +
                      std::to_string(
                          std::chrono::duration_cast<std::chrono::seconds>(pace->due - pace->last)
                              .count()) +
                      " s after the last failure: " +
                      draft->next.conditions[ConditionType::kRestarting].message);
      draft->WakeAt(pace->due);
      return;
    }
  }
  const std::string cluster = ClusterStamp(view.job, view.seen.settings);
  if (const PodSeen* former = MayRunStill(view, draft->next.recovery.restart_all_below, cluster)) {
    draft->Wait(Reason::kFormerProcesses,
                "all pods restart together, and " + former->name + " has to end first");
    return;
  }
  Mounted(view, "pods mount it", /*repeat=*/false, draft);
  // Before the pods, so that no port of theirs is ever open to others. What is there stays as it
  // is.
  if (view.seen.settings.http_peers) {
    draft->Add(Phase::kPrepare, JobNetworkPolicy(view.job, view.seen.settings),
               "its ports are for its own processes");
  }
  const size_t most = static_cast<size_t>(std::max(1, view.seen.settings.max_creates));
  if (missing.size() > most) {
    missing.resize(most);
    draft->again = true;
  }
  for (CreatePod& pod : missing) draft->Add(Phase::kCreate, std::move(pod), "it is missing");
}

}  // namespace meshtrain::reconcile
