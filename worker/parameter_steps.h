// Steps that run on the workers of parameter servers, as the training loop sees them: one after the
// other, although several run at once.
//
// The loop asks for a batch; what it gets stands for a step that was scheduled, and TrainStep or
// EvalStep waits for the oldest. Kept true: no step is scheduled across the end of an epoch or a
// step that is saved, so that what a checkpoint or a validation sees is the work of exactly the
// steps before it; and when a stop is requested, the steps that were scheduled come to their end
// before the loop does.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/distribute/parameter/coordinator.h"
#include "runtime/train/loop.h"

namespace meshtrain::worker {

// Of one function, in the order in which they were scheduled. Used by one thread.
class StepWindow {
 public:
  // `stop`: no step begins any more. `give_up`, some time later: nor is the end of those that are
  // under way waited for.
  StepWindow(parameter::Coordinator& coordinator, parameter::Function function,
             std::stop_token stop, std::stop_token give_up)
      : coordinator_(coordinator),
        function_(std::move(function)),
        stop_(std::move(stop)),
        give_up_(std::move(give_up)) {}
  Status Schedule(const std::vector<parameter::Arg>& arguments);
  int64_t size() const { return static_cast<int64_t>(steps_.size()); }
  // What the oldest gave. A step whose loss is not finite gives a NaN, and `not_finite` says why.
  Result<train::Scalars> Take();
  const std::string& not_finite() const { return not_finite_; }

 private:
  parameter::Coordinator& coordinator_;
  parameter::Function function_;
  const std::stop_token stop_, give_up_;
  std::deque<parameter::RemoteValue> steps_;
  std::string not_finite_;
};

// Where steps must have ended before others begin. Pure.
struct Boundaries {
  int64_t first = 0;  // a step with which an epoch begins: 0, or where a resumed epoch began
  int64_t steps_per_epoch = 1;
  int64_t save_every = 0;  // 0: never
  // The next one after `step` finished steps. {.steps_per_epoch = 10, .save_every = 4}.After(4) ==
  // 8, .After(8) == 10
  int64_t After(int64_t step) const;
};

// Batches of training: each is the next one of the worker that gets the step.
class RemoteTraining final : public train::BatchSource {
 public:
  struct Options {
    parameter::PerWorker data;
    Boundaries boundaries;
    int64_t step = 0;        // finished when the loop begins
    int64_t window = 1;      // steps to schedule ahead, the one that is waited for included
    int64_t batch_size = 0;  // nominal
    std::stop_token stop;    // the user's
    std::stop_source end;    // the loop's: requested when nothing is left to wait for
  };
  RemoteTraining(StepWindow& window, Options options) : window_(window), o_(std::move(options)) {}
  // `stop` is the loop's own.
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override;
  int64_t steps_per_epoch() const override { return o_.boundaries.steps_per_epoch; }
  void Took() { ++o_.step; }

 private:
  StepWindow& window_;
  Options o_;
  Status failed_;  // why no more steps are scheduled
};

// Batches of validation: read here, and sent with the step.
class RemoteValidation final : public train::BatchSource {
 public:
  struct Options {
    int64_t steps = -1;    // of one validation; -1: a pass
    int64_t ahead = 1;     // steps to schedule
    std::stop_token stop;  // as RemoteTraining's
    std::stop_source end;
  };
  RemoteValidation(StepWindow& window, data::Pipeline& pipeline, Options options)
      : window_(window), pipeline_(pipeline), o_(std::move(options)) {}
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override;
  int64_t steps_per_epoch() const override { return pipeline_.steps_per_epoch(); }
  const Status& error() const { return error_; }  // the data's

 private:
  StepWindow& window_;
  data::Pipeline& pipeline_;
  Options o_;
  int64_t scheduled_ = 0, given_ = 0;  // of all validations
  std::deque<int64_t> sizes_;          // of batches that were scheduled and not given
  bool pass_over_ = false;
  Status error_;
};

// Runs nothing itself: takes what the windows give.
class RemoteRunner final : public train::StepRunner {
 public:
  // `give_up`: ends a save that takes too long.
  RemoteRunner(parameter::Coordinator& coordinator, StepWindow& training, StepWindow& evaluation,
               std::string program_hash, std::stop_token give_up)
      : coordinator_(coordinator),
        training_(training),
        evaluation_(evaluation),
        program_hash_(std::move(program_hash)),
        give_up_(std::move(give_up)) {}
  void set_source(RemoteTraining* source) { source_ = source; }
  // Of the step that Save is about to be called for.
  void Note(const train::Position& position) { position_ = position; }
  void set_last_saved(int64_t step) { last_saved_ = step; }

  Result<train::Scalars> TrainStep(const train::Batch& batch) override;
  Result<train::Scalars> EvalStep(const train::Batch& batch) override;
  Status Save(int64_t step) override;
  int64_t last_saved() const override { return last_saved_; }
  // kNotFound: the batch stayed on its worker. The message says which step it was.
  Result<std::string> FirstNonFinite(const train::Batch& batch) override;

 private:
  parameter::Coordinator& coordinator_;
  StepWindow& training_;
  StepWindow& evaluation_;
  const std::string program_hash_;
  const std::stop_token give_up_;
  RemoteTraining* source_ = nullptr;
  train::Position position_;
  int64_t last_saved_ = -1;
};

}  // namespace meshtrain::worker
