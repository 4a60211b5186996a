// What happens to a world besides its operator, and jobs of random shape.
#include <algorithm>

#include "operator/reconcile/children.h"
#include "tests/sim/world.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;

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

void World::MakeAgainAt(double second, double pause) {
  After(second, [=, this] { MakeAgain(pause); });
}

void World::RestoreAt(double second, double ago) {
  After(second - ago, [this] { KeepBackup(); });
  After(second, [this] { Restore(backups_.front()); });
}

void World::DeleteClaimAt(double second) {
  After(second, [this] {
    Fire("the claim is deleted");
    DeleteClaim(kClaimKey + reconcile::CheckpointClaim(*job()).name);
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

void World::Chaos() {
  if (calm_) return;
  if (faults_.wide) KeepBackup();
  After(1, [this] { Chaos(); });
  if (!Chance(faults_.chaos) || job() == nullptr) return;
  std::vector<PodSeen> pods;
  for (const auto& [key, versions] : objects_) {
    const auto& pod = versions.back().pod;
    if (pod && pod->controller_uid == job()->metadata.uid && !pod->delete_requested) {
      pods.push_back(*pod);
    }
  }
  const auto some = [&]() -> const PodSeen& {
    return pods[static_cast<size_t>(Below(static_cast<int>(pods.size())))];
  };
  const size_t node = static_cast<size_t>(Below(static_cast<int>(nodes_.size())));
  switch (Below(faults_.wide ? 15 : 13)) {
    case 0:
      if (pods.empty()) return;
      Fire("pod drained");
      Log("drain " + some().name);
      return RequestDeletion(some().name, some().uid, 30);
    case 1: {
      if (pods.empty()) return;
      const PodSeen pod = some();
      if (pod.phase != PodPhase::kRunning) return;
      Fire("pod evicted");
      Log("evict " + pod.name);
      return ChangePod(pod.name, pod.uid, [&](PodSeen& p) {
        p.phase = PodPhase::kFailed;
        p.reason = "Evicted";
        p.disrupted = Below(2) == 0;
        if (Below(2) == 0) p.exit_code = 137;
      });
    }
    case 2:
      if (!nodes_[node].up) return;
      Fire("node dies");
      Log("node " + std::to_string(node) + " dies");
      nodes_[node].up = false;
      After(Between(1, 40), [=, this] {
        if (nodes_[node].up) return;
        nodes_[node].ready = false;
        ShowNodes();
      });
      After(Between(20, 200), [=, this] {
        if (Chance(0.3) && !nodes_[node].up) {
          Fire("node vanishes");
          nodes_[node].gone = true;
          ShowNodes();
        } else if (Chance(0.2) && !nodes_[node].up) {
          Fire("node tainted out-of-service");
          nodes_[node].out_of_service = true;
          ShowNodes();
        }
        After(Between(1, 60), [=, this] {
          Fire("node comes back");
          // A node that comes back under its name after it was deleted has no pods of before.
          if (nodes_[node].gone) {
            std::vector<std::pair<std::string, std::string>> left;
            for (const auto& [key, versions] : objects_) {
              const auto& pod = versions.back().pod;
              if (pod && pod->node == "node-" + std::to_string(node)) {
                left.emplace_back(pod->name, pod->uid);
              }
            }
            for (const auto& [name, uid] : left) RemovePod(name, uid);
          }
          nodes_[node] = Node{.skew = nodes_[node].skew};
          ShowNodes();
        });
      });
      return;
    case 3:
      Fire("user suspends");
      Log("suspend");
      ChangeJob([](api::TrainingJob& job) { job.spec.run_policy.suspend = true; }, true);
      // While it stands still its workers may become more or fewer, though it is not elastic.
      if (Chance(0.5) && api::Replicas(job()->spec, Role::kWorker) > 0 &&
          job()->spec.success_policy != api::kSuccessAllWorkers) {
        const int next = 1 + Below(6);
        Fire("user scales a suspended job");
        SawWorkers(next);
        ChangeJob(
            [&](api::TrainingJob& job) { job.spec.replica_specs[Role::kWorker].replicas = next; },
            true);
      }
      return After(Between(0.01, 30), [this] {
        Log("resume");
        ChangeJob([](api::TrainingJob& job) { job.spec.run_policy.suspend = false; }, true);
      });
    case 4: {
      const int workers = api::Replicas(job()->spec, Role::kWorker);
      if (workers < 1 || !job()->spec.elastic ||
          job()->spec.success_policy == api::kSuccessAllWorkers) {
        return;
      }
      const int next = 1 + Below(6);
      Fire("user scales");
      Log("scale to " + std::to_string(next));
      SawWorkers(next);
      return ChangeJob(
          [&](api::TrainingJob& job) { job.spec.replica_specs[Role::kWorker].replicas = next; },
          true);
    }
    case 5:
      Fire("another writer changes the job");
      return ChangeJob([](api::TrainingJob&) {}, false);
    case 6:
      Fire("quota set");
      quota_ = true;
      return After(Between(1, 20), [this] { quota_ = false; });
    case 7:
      if (process_ == 0) return;
      Fire("leader change");
      Log("leader change");
      return StartProcess(Between(2, 20));
    case 8:
      if (process_ == 0) return;
      Fire("operator away for minutes");
      Log("operator away");
      return StartProcess(Between(60, 200));
    case 9:
      if (pods.empty()) return;
      Fire("pod deleted by hand, by force");
      Log("force " + some().name);
      return RequestDeletion(some().name, some().uid, 0);
    case 10: {
      const std::string key = kSecretKey + reconcile::TokenSecret(*job()).name;
      const Object* token = Now(key);
      if (token == nullptr || !token->child) return;
      Fire("the token is deleted");
      return Put(key, {});
    }
    case 11: {
      const std::string key = kClaimKey + reconcile::CheckpointClaim(*job()).name;
      const Object* claim = Now(key);
      if (claim == nullptr || !claim->child || claim->child->deleting) break;
      Fire("the claim is deleted");
      return DeleteClaim(key);
    }
    case 13:
      return MakeAgain(Between(0, 20));
    case 14:
      return Restore(backups_[static_cast<size_t>(Below(static_cast<int>(backups_.size())))]);
    default:
      Fire("watch starts again from a list");
      return Relist(process_);
  }
}

void World::SawWorkers(int workers) {
  Life& life = lives_[job()->metadata.uid];
  life.most_workers = std::max(life.most_workers, workers);
}

api::TrainingJob RandomJob(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ull + 1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  auto builder = testing_support::MakeJob("sim");
  const std::string_view policies[] = {api::kRestartExitCode, api::kRestartExitCode,
                                       api::kRestartOnFailure, api::kRestartNever};
  const auto policy = [&] { return policies[below(4)]; };
  const bool chief = below(2) == 0;
  if (chief) builder.Chief(policy());
  builder.Workers(1 + below(4), policy());
  if (below(4) == 0) builder.Ps(1 + below(2), policy());
  const bool evaluator = below(5) == 0;
  if (evaluator) builder.Evaluator(policy());
  builder.With([&](api::TrainingJob& job) {
    api::RunPolicy& run = job.spec.run_policy;
    const std::string_view clean[] = {api::kCleanAll, api::kCleanRunning, api::kCleanNone};
    run.clean_pod_policy = std::string(clean[below(3)]);
    if (below(2) == 0) run.dead_node_seconds = 20 + below(60);
    if (below(2) == 0) job.spec.elastic = api::Elastic{.min_replicas = 1, .max_replicas = 6};
    if (below(3) == 0) job.spec.program = testing_support::kProgram;
    if (api::Replicas(job.spec, Role::kPs) > 0) job.spec.strategy = api::kStrategyParameterServer;
    // The workers of a program are its mesh, but beside servers.
    if (!job.spec.program.empty() && job.spec.strategy.empty()) job.spec.elastic.reset();
    if (below(2) == 0) run.backoff_limit = below(6);
    if (run.backoff_limit && below(3) == 0) run.backoff_window_seconds = 60;
    if (below(8) == 0) run.active_deadline_seconds = 60 + below(200);
    if (below(8) == 0) run.startup_deadline_seconds = 30 + below(100);
    if (below(6) == 0) run.ttl_seconds_after_finished = below(30);
    if (below(4) == 0) job.spec.success_policy = std::string(api::kSuccessAllWorkers);
    if (evaluator && below(2) == 0) job.spec.wait_for_evaluator = true;
    const std::string_view actions[] = {api::kActionRestartAll, api::kActionRestart,
                                        api::kActionFail};
    if (below(3) == 0) {
      job.spec.failure_rules.push_back(
          {.exit_codes = {138}, .action = std::string(actions[below(3)])});
    }
    if (below(8) == 0) {
      job.spec.failure_rules.push_back({.reasons = {"Evicted"}, .action = "RestartAll"});
    }
    if (below(6) == 0) {
      job.spec.replica_specs[Role::kWorker].restart_budget = api::RestartBudget{.limit = below(4)};
    }
    if (below(6) == 0) run.suspend = true;
    if (below(4) == 0) {
      job.spec.checkpoint =
          api::Checkpoint{.path = "/c", .volume_claim_template = R"({"spec":{}})"};
    }
  });
  return builder.Build();
}

}  // namespace meshtrain::sim
