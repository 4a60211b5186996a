// Jobs and pods for tests: MakeJob("mnist").Chief().Workers(3).Gpus(8).Build().
#pragma once

#include <string>
#include <string_view>

#include "operator/api/training_job.h"
#include "operator/reconcile/observed.h"
#include "tests/support/small_program.h"

namespace meshtrain::testing_support {

// 2026-01-01T00:00:00Z plus `seconds`.
TimePoint At(double seconds);

// kProgram on a mesh of so many devices.
std::string ProgramOnMesh(int devices);

class JobBuilder {
 public:
  explicit JobBuilder(std::string name);
  JobBuilder& Chief(std::string_view restart_policy = api::kRestartExitCode);
  JobBuilder& Workers(int count, std::string_view restart_policy = api::kRestartExitCode);
  JobBuilder& Ps(int count, std::string_view restart_policy = api::kRestartExitCode);
  JobBuilder& Evaluator(std::string_view restart_policy = api::kRestartExitCode);
  JobBuilder& Gpus(int count);  // per pod, of every role given so far
  JobBuilder& Template(cluster::Role role, std::string_view json);
  JobBuilder& Program(std::string_view json);
  JobBuilder& Backoff(int limit);
  JobBuilder& Clean(std::string_view policy);
  JobBuilder& Suspended(bool suspended = true);
  // Anything else: With([](api::TrainingJob& job) { job.spec.run_policy... }).
  template <typename Change>
  JobBuilder& With(Change change) {
    change(job_);
    return *this;
  }
  api::TrainingJob Build() const { return job_; }

 private:
  JobBuilder& Role(cluster::Role role, int count, std::string_view restart_policy);
  api::TrainingJob job_;
};
JobBuilder MakeJob(std::string name);

// A pod as the operator would have made it, running, of attempt 0, made at At(0).
reconcile::PodSeen MakePod(const api::TrainingJob& job, cluster::TaskId task,
                           reconcile::PodPhase phase = reconcile::PodPhase::kRunning);
// The same, ended by itself.
reconcile::PodSeen EndedPod(const api::TrainingJob& job, cluster::TaskId task, int exit_code,
                            std::string_view reason = "");

}  // namespace meshtrain::testing_support
