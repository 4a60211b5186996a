// The stages of a training job where its kinds differ: who takes part, how they come together and
// part, and what is told of them. A Training (training.h) goes through them, in this order:
//
//   Start   once, before the data is opened
//   Open    once, with the data: strategy, engine and saver, as far as they can be made alone
//   Begin   all who take part are here, with the states of the newest checkpoint or the first ones
//   Fit     trains and saves
//   End     what was saved last is durable; or a process was lost, and the next round Begins
//   Close   once, with what the job ends with; where several take part, the others wait for it
//
// Steps are the engine's (runtime/trainer/engine.h), checkpoints the saver's. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/nn/parameter.h"
#include "runtime/recipe/recipe.h"
#include "runtime/saving/resume.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/config.h"
#include "runtime/trainer/job/reporter.h"
#include "runtime/trainer/job/saver.h"

namespace meshtrain::trainer {

// What is to be trained. The stages borrow it.
struct JobParts {
  JobConfig config;
  manifest::Manifest manifest;
  std::unique_ptr<data::Pipeline> train, test;  // from Open on; test: null without `data.test`
  int64_t epochs = 0, steps_per_epoch = 0;
};

class JobStages {
 public:
  virtual ~JobStages() = default;

  virtual Status Start(std::stop_token stop) = 0;
  virtual Status Open(std::stop_token stop) = 0;
  // Where training goes on; nothing: it begins. A process that is lost meanwhile is waited for.
  // What the process ends with where that fails: cluster::Stopped() where it was asked to stop.
  virtual Result<std::optional<saving::Resumed>> Begin(std::stop_token stop) = 0;

  // From Begin on.
  struct Description {
    std::string mesh;       // for people: "batch=8", "2 workers, 1 parameter server"
    std::string beginning;  // "training NAME " this "; output in ..."
    telemetry::Progress::Plan plan;
    std::optional<report::PlanView> view;   // of the plan, for the page
    std::string plan_text;                  // of plan.txt
    std::vector<nn::Parameter> parameters;  // the trained weights
    // As Reporter::Run has them.
    std::function<std::vector<double>()> rank_step_seconds;
    std::function<int64_t()> collective_bytes;
    std::function<Duration()> collective_time;
  };
  virtual Description Describe() const = 0;
  // Whether this process writes the job's files.
  virtual bool chief() const { return true; }
  // Of the checkpoints.
  virtual std::string folder() const = 0;
  // From Begin on.
  virtual Saver& saver() = 0;

  // For figures of its own; null: none. From Begin on.
  virtual std::unique_ptr<train::Callback> MakeMetrics(telemetry::Metrics&) { return nullptr; }
  // Engine::Fit.
  virtual Result<train::FitResult> Fit(FitWork work, std::stop_token stop) = 0;
  // The text that the manifest's `generate` asks for, of the weights that Fit has left; none: it
  // asks for none, or what was lost meanwhile makes End go on with another round. (Parameter
  // servers refuse the source that it needs.)
  virtual Result<std::optional<std::string>> Write(std::stop_token) {
    return std::optional<std::string>();
  }

  struct RoundEnd {
    bool again = false;  // a process was lost or leaves: the next round Begins
    Status training;     // what the process ends with, where Fit failed
    Status saved;
  };
  virtual RoundEnd End(const Result<train::FitResult>& result, std::stop_token stop) = 0;
  virtual void Close(const Status&) {}

  // Told of each loss that a round ends with: who was lost first ("worker-2", "": not known), the
  // incarnation that ended, and why.
  using Interrupted =
      std::function<void(const std::string& rank, uint64_t incarnation, const Status& why)>;
  void set_interrupted(Interrupted interrupted) { interrupted_ = std::move(interrupted); }

 protected:
  Interrupted interrupted_;
};

// A mesh, of this process's devices or of several processes'.
std::unique_ptr<JobStages> MakeMeshJob(const JobParts& job);
// The chief of a job with parameter servers; also worker 0 of a job without a chief, which then
// runs steps in the same process. Needs config.job.tf_config.
std::unique_ptr<JobStages> MakeServerJob(const JobParts& job);

}  // namespace meshtrain::trainer
