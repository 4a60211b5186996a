// Children that are missing, and children that are too many.
#include <algorithm>
#include <set>
#include <string>

#include "operator/reconcile/children.h"
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

enum class Names : uint8_t { kThere, kAskedFor, kTaken };

// Asks for the Services that are missing; a foreign one of a name that we need blocks the job.
Names Services(const View& view, Draft* draft) {
  const auto seen = [&](const std::string& name) {
    return std::find_if(view.seen.services.begin(), view.seen.services.end(),
                        [&](const ServiceSeen& service) { return service.name == name; });
  };
  const bool legacy = view.job.spec.tf_config_compat == api::kCompatKubeflowV1;
  // The common case without formatting: one Service, and it is ours.
  if (const auto found = seen(view.job.metadata.name);
      !legacy && found != view.seen.services.end() &&
      found->controller_uid == view.job.metadata.uid) {
    return Names::kThere;
  }
  Names names = Names::kThere;
  std::set<std::string> wanted;
  for (CreateService& service : WantedServices(view.job)) {
    wanted.insert(service.name);
    const auto found = seen(service.name);
    if (found == view.seen.services.end()) {
      draft->Add(Phase::kPrepare, std::move(service));
      if (names == Names::kThere) names = Names::kAskedFor;
    } else if (found->controller_uid != view.job.metadata.uid) {
      draft->Wait("NameTaken", "a Service of the name " + service.name + " belongs to another");
      names = Names::kTaken;
    }
  }
  for (const ServiceSeen& service : view.seen.services) {
    // A name that a replica of this job had; what the user hung on the job under another name is
    // the user's.
    const bool ours = service.controller_uid == view.job.metadata.uid &&
                      service.name.starts_with(view.job.metadata.name + "-");
    if (ours && !wanted.contains(service.name)) {
      draft->Add(Phase::kRemove, DeleteService{.name = service.name, .uid = service.uid});
    }
  }
  return names;
}

TaskId First(const api::Spec& spec) {
  for (const auto& [role, replica] : spec.replica_specs) {
    if (replica.replicas > 0) return {role, 0};
  }
  return api::Leader(spec);
}

// What was asked for beside a Service that was then refused goes away again before it starts: who
// looks at the job is to find that it waits, with nothing made.
void TakeBack(const View& view, Draft* draft) {
  const bool refused = view.seen.refused && view.seen.refused->service;
  if (!refused || view.job.status.conditions.contains(ConditionType::kRunning)) return;
  if (api::IsTrue(draft->next, ConditionType::kRestarting)) {
    return;  // a pod that failed is judged as any other
  }
  for (const auto& [task, pod] : view.ours) {
    if (!view.Wanted(task) || pod->phase != PodPhase::kPending || pod->delete_requested) continue;
    draft->Add(
        Phase::kRemove,
        DeletePod{.name = pod->name, .uid = pod->uid, .why = "the job's Service was refused"});
  }
}

}  // namespace

void Children(const View& view, bool may_create, Draft* draft) {
  for (const auto& [task, pod] : view.orphans) {
    if (view.Wanted(task)) draft->Add(Phase::kRemove, AdoptPod{.name = pod->name, .uid = pod->uid});
  }
  for (const PodSeen* pod : view.strays) {
    draft->Add(Phase::kRemove, ReleasePod{.name = pod->name, .uid = pod->uid});
  }
  for (const auto& [task, pod] : view.ours) {
    const bool surplus = !view.Wanted(task);
    const bool dead = (pod->delete_requested || surplus) && OnDeadNode(view, *pod, draft);
    if (pod->delete_requested ? dead : surplus) {
      draft->Add(
          Phase::kRemove,
          DeletePod{.name = pod->name,
                    .uid = pod->uid,
                    .grace_seconds = dead ? std::optional<int64_t>(0) : std::nullopt,
                    .why = surplus ? "the job was scaled down" : "its node will not answer"});
    }
  }

  const Names names = Services(view, draft);
  if (names == Names::kAskedFor) TakeBack(view, draft);
  std::vector<CreatePod> missing;
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    for (int32_t i = 0; i < replica.replicas; ++i) {
      const TaskId task{role, i};
      if (view.Ours(task) != nullptr || view.orphans.contains(task)) continue;
      const std::string name = cluster::PodName(view.job.metadata.name, task);
      if (const auto other = view.foreign.find(name); other != view.foreign.end()) {
        draft->Wait("NameTaken",
                    "the pod " + name +
                        (other->second->delete_requested ? " of a former job is still going away"
                                                         : " belongs to another"));
        continue;
      }
      missing.push_back({.name = name, .task = task, .attempt = draft->next.recovery.attempt});
    }
  }
  if (missing.empty() || names == Names::kTaken || !may_create) return;
  if (api::IsTrue(draft->next, ConditionType::kRestarting)) {
    if (const auto pace = NextAttempt(draft->next); pace && view.now < pace->due) {
      draft->Wait("RestartBackoff",
                  "the next restart waits until " +
                      std::to_string(
                          std::chrono::duration_cast<std::chrono::seconds>(pace->due - pace->last)
                              .count()) +
                      " s after the last failure");
      draft->WakeAt(pace->due);
      return;
    }
  }
  const api::Spec& spec = view.job.spec;
  if (!view.job.status.conditions.contains(ConditionType::kRunning)) {
    // Until the job first ran, what it needs besides may be missing; all of it may be asked for
    // twice.
    if (!spec.program.empty()) draft->Add(Phase::kPrepare, TokenSecret(view.job));
    if (spec.checkpoint && !spec.checkpoint->volume_claim_template.empty()) {
      draft->Add(Phase::kPrepare, CheckpointClaim(view.job));
    }
  }
  if (NeedsClusterFile(view.job, view.seen.settings)) {
    draft->Add(Phase::kPrepare, ClusterMap(view.job, view.seen.settings));
  }
  const size_t most = static_cast<size_t>(std::max(1, view.seen.settings.max_creates));
  if (missing.size() > most) {
    missing.resize(most);
    draft->again = true;
  }
  // Names have to resolve when pods have addresses, which is far later than their creation. So at
  // the very first look the first pod waits for nothing but what it mounts, and the Service is
  // asked for with the others. From then on the Service comes first, so that one that is refused
  // again and again costs no pods again and again.
  const bool mounts =
      std::any_of(draft->actions.begin(), draft->actions.end(), [](const Action& action) {
        return action.phase == Phase::kPrepare &&
               !std::holds_alternative<CreateService>(action.write);
      });
  const bool at_once = names == Names::kAskedFor && !mounts && !view.seen.refused &&
                       view.job.status.conditions.empty() && missing.front().task == First(spec);
  if (at_once) {
    for (Action& action : draft->actions) {
      if (action.phase == Phase::kPrepare) action.phase = Phase::kCreate;
    }
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    draft->Add(at_once && i == 0 ? Phase::kFirst : Phase::kCreate, std::move(missing[i]));
  }
}

}  // namespace meshtrain::reconcile
