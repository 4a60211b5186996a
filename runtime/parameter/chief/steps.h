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
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/train/loop.h"

namespace meshtrain::parameter {

// How many steps the loop keeps under way.
struct InFlight {
  int per_worker = 1;  // CoordinatorOptions::steps_in_flight
  int64_t ahead = 1;   // to schedule; with more than run at once some lie ready
};
// For `steps` at once in the whole job, 0: one for each worker. Where every worker may hold equally
// many, as many more lie ready for whoever is done first. Pure. {steps 1, 3 workers} -> {1, 1},
// {0, 3} -> {1, 6}, {4, 3} -> {2, 4}
InFlight DivideInFlight(int64_t steps, int64_t workers);

// Of one function, in the order in which they were scheduled. Used by one thread.
class StepWindow {
 public:
  // `stop`: no step begins any more. `give_up`, some time later: nor is the end of those that are
  // under way waited for.
  StepWindow(Coordinator& coordinator, Function function, std::stop_token stop,
             std::stop_token give_up)
      : coordinator_(coordinator),
        function_(std::move(function)),
        stop_(std::move(stop)),
        give_up_(std::move(give_up)) {}
  // Of what is scheduled from now on.
  void set_function(Function function) { function_ = std::move(function); }
  Status Schedule(const std::vector<Arg>& arguments);
  int64_t size() const { return static_cast<int64_t>(steps_.size()); }
  // What the oldest gave. Errors: kAborted for a bad step, which pushed nothing.
  Result<Outputs> Take();
  // Waits for the steps that nobody will take, and for the coordinator to tell its error, so that
  // it can be used again. How many of them were done.
  int64_t Drain();

 private:
  Coordinator& coordinator_;
  Function function_;
  const std::stop_token stop_, give_up_;
  std::deque<RemoteValue> steps_;
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
    PerWorker data;
    Boundaries boundaries;
    int64_t step = 0;        // finished when the loop begins
    int64_t window = 1;      // steps to schedule ahead, the one that is waited for included
    int64_t batch_size = 0;  // of a full batch; each step says how many examples its own had
    std::stop_token stop;    // the user's
    std::stop_source end;    // the loop's: requested when nothing is left to wait for
    // While it says so no step is scheduled beside those that are under way: a save waits for them.
    std::function<bool()> hold = {};
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

// Batches of this process, each sent with its step.
class SentBatches final : public train::BatchSource {
 public:
  struct Options {
    int64_t steps = -1;    // of one epoch, or one validation; -1: a pass
    int64_t ahead = 1;     // steps to schedule, the one that is waited for included
    std::stop_token stop;  // as RemoteTraining's
    std::stop_source end;
    // Told of each batch before its step is scheduled.
    std::function<Status(const train::Batch&)> before = {};
  };
  // Both outlive it.
  SentBatches(StepWindow& window, train::BatchSource& source, Options options)
      : window_(window), source_(source), o_(std::move(options)) {}
  // Between two evaluations no step of theirs is scheduled (Options::steps).
  Status Begin() override { return source_.Begin(); }
  // `stop` is the loop's own.
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override;
  int64_t steps_per_epoch() const override { return source_.steps_per_epoch(); }
  bool endless() const override { return source_.endless(); }

 private:
  Status ScheduleNext();

  StepWindow& window_;
  train::BatchSource& source_;
  Options o_;
  int64_t scheduled_ = 0, given_ = 0;  // of all epochs
  std::deque<int64_t> sizes_;          // of batches that were scheduled and not given
  bool pass_over_ = false;
  Status failed_;  // why no more steps are scheduled
};

// Runs nothing itself: takes what the windows give. A step that counts the examples of its batch
// (split.h, kExamplesName) is believed before the size that the batch was announced with.
class RemoteRunner final : public train::StepRunner {
 public:
  RemoteRunner(StepWindow& training, StepWindow& evaluation)
      : training_(training), evaluation_(evaluation) {}
  // Those of the steps' outputs that are sums (train::Programs).
  void set_summed(std::vector<train::FigureSums> summed) { summed_ = std::move(summed); }
  // Told of each step that was taken.
  void set_source(RemoteTraining* source) { source_ = source; }
  // What Save calls; without one Save does nothing.
  void set_saver(std::function<Status(const train::Position& position)> saver) {
    saver_ = std::move(saver);
  }
  void set_last_saved(int64_t step) { last_saved_ = step; }

  Result<train::BatchFigures> TrainStep(const train::Batch& batch) override;
  Result<train::BatchFigures> EvalStep(const train::Batch& batch) override;
  Status Save(const train::Position& position) override;
  int64_t last_saved() const override { return last_saved_; }
  std::vector<train::FigureSums> summed() const override { return summed_; }

 private:
  StepWindow& training_;
  StepWindow& evaluation_;
  std::vector<train::FigureSums> summed_;
  RemoteTraining* source_ = nullptr;
  std::function<Status(const train::Position&)> saver_;
  int64_t last_saved_ = -1;
};

}  // namespace meshtrain::parameter
