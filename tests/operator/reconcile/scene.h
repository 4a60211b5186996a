// A job and its pods at one moment, for table tests:
// Scene(MakeJob("mnist").Workers(2)).Running().Look(At(20)).
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "operator/reconcile/reconcile.h"
#include "tests/support/job_builder.h"

namespace meshtrain::reconcile {

using testing_support::At;
using testing_support::EndedPod;
using testing_support::JobBuilder;
using testing_support::MakeJob;
using testing_support::MakePod;

class Scene {
 public:
  explicit Scene(const JobBuilder& builder);

  // As if the operator had made everything at 0 s, and all pods ran from 2 s on.
  Scene& Running();
  // Replaces (or adds) a pod; attempts are kept from the pod before.
  Scene& Pod(PodSeen pod);
  Scene& Gone(cluster::TaskId task);
  // Asks once, takes over the status, and says what was decided, one line each (reasons left out).
  std::string Look(double at);
  // What pods would become: creations and deletions of the last Look are carried out; new pods run.
  Scene& Obey();

  api::TrainingJob job;
  Observed seen;
  Outcome last;
  api::JobStatus& status() { return job.status; }
  bool Is(api::ConditionType type) const { return api::IsTrue(job.status, type); }
  std::string Reason(api::ConditionType type) const;
};

// MT_TEST_SEED, else one that is always the same.
uint64_t Seed();
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Once(int n) { return Below(n) == 0; }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};
// Any job in any state, as far as its pods go.
Scene AnyScene(Dice* dice);

inline constexpr cluster::TaskId kChief{cluster::Role::kChief, 0};
inline constexpr cluster::TaskId kWorker0{cluster::Role::kWorker, 0};
inline constexpr cluster::TaskId kWorker1{cluster::Role::kWorker, 1};
inline constexpr cluster::TaskId kWorker2{cluster::Role::kWorker, 2};

}  // namespace meshtrain::reconcile
