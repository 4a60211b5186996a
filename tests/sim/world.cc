#include "tests/sim/world.h"

#include <algorithm>

#include "tests/support/job_builder.h"

namespace meshtrain::sim {

using cluster::Role;
using reconcile::PodPhase;
using reconcile::PodSeen;
using testing_support::At;

// A history has a few dozen.
constexpr int kMostLooks = 50000;

World::World(uint64_t seed, Faults faults, api::TrainingJob job, Decide decide)
    : decide_(std::move(decide)),
      random_(seed),
      faults_(faults),
      now_(At(0)),
      nodes_(3),
      reads_its_writes_(seed % 2 == 1),
      skewed_(faults.chaos > 0 && seed % 3 == 0) {
  server_skew_ = AnySkew();
  for (Node& node : nodes_) node.skew = AnySkew();
  first_job_ = job;
  BeginLife(job);
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

void World::BeginLife(const api::TrainingJob& job) {
  const api::RunPolicy& run = job.spec.run_policy;
  lives_[job.metadata.uid] = {.deadline_possible = run.active_deadline_seconds.has_value() ||
                                                   run.startup_deadline_seconds.has_value(),
                              .most_workers = api::Replicas(job.spec, Role::kWorker)};
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
  // A world that is broken so often shows nothing more.
  const auto broken = [&] { return violations_.size() >= 50 || reconciles_ >= kMostLooks; };
  while (!events_.empty() && events_.begin()->first.first <= when && !broken()) {
    auto node = events_.extract(events_.begin());
    now_ = std::max(now_, node.key().first);
    node.mapped()();
    if (reconciles_ == kMostLooks) Violate("P5: it looks without end");
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

}  // namespace meshtrain::sim
