// What happens to a world besides its operator, how a history ends, and jobs of random shape.
#include <algorithm>

#include "operator/api/json.h"
#include "tests/sim/world.h"
#include "tests/support/job_builder.h"

namespace meshtrain::sim {
namespace {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;

Duration Seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}
std::string PodKey(const std::string& name) { return "pod/" + name; }
bool Live(const PodSeen& pod) {
  return pod.phase == PodPhase::kPending || pod.phase == PodPhase::kRunning;
}

}  // namespace

// --- what happens besides
// -------------------------------------------------------------------------------------------------

void World::Chaos() {
  if (calm_) return;
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
  switch (Below(12)) {
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
        most_workers_ = std::max(most_workers_, next);
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
      most_workers_ = std::max(most_workers_, next);
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
      const Object* token = Now("secret/token");
      if (token == nullptr || !token->secret) return;
      Fire("the token is deleted");
      Log("the token is deleted");
      return Put("secret/token", {});
    }
    default:
      Fire("watch starts again from a list");
      return Relist(process_);
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
  if (current == nullptr) {
    if (!Pods().empty()) Violate("pods outlive their job");
    return;
  }
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
  const reconcile::Outcome outcome = reconcile::Reconcile(*current, Observe(), OperatorNow());
  if (!outcome.empty()) Violate("P3: not settled:\n" + ToString(outcome));
}

void World::Run(double stormy) {
  StartProcess(0.001);
  After(1, [this] { Chaos(); });
  RunUntil(now_ + Seconds(stormy));
  calm_ = true;
  faults_.write = faults_.watch = faults_.pod = faults_.chaos = 0;
  quota_ = false;
  for (Node& node : nodes_) {
    node.up = true;
    node.gone = node.out_of_service = false;
    node.ready = true;
  }
  ShowNodes();
  if (job() != nullptr && job()->spec.run_policy.suspend) {
    ChangeJob([](api::TrainingJob& job) { job.spec.run_policy.suspend = false; }, true);
  }
  // The longest back-off, deadlines and a good many runs fit into this.
  RunUntil(now_ + Seconds(1500));
  CheckSettled();
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
    if (below(3) == 0) job.spec.program = "{}";
    if (api::Replicas(job.spec, Role::kPs) > 0) job.spec.strategy = api::kStrategyParameterServer;
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
  });
  return builder.Build();
}

}  // namespace meshtrain::sim
