// Callbacks that need nothing but the loop. Progress lines, event files and metrics.jsonl are
// runtime/telemetry's; a FunctionCallback ties them to the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/train/loop.h"

namespace meshtrain::train {

// When a run saves, besides at its end.
struct SaveTimes {
  int64_t every_steps = 0;  // 0: not by steps
  bool each_epoch = false;  // after its validation
  Duration at_latest{};     // since the newest save, or since training began; 0: not by time
};
// For who says nothing about it: a crash costs an epoch at most, and ten minutes at most.
inline constexpr SaveTimes kSaveByDefault = {.each_epoch = true,
                                             .at_latest = std::chrono::minutes(10)};

// Saves at these times, and at the end (stopped early or not) unless that step is saved already, or
// it was stopped before its first step, or the loss was not finite: then the last good checkpoint
// stays the newest, whose run it may be.
class CheckpointEvery final : public Callback {
 public:
  // The runner and the clock must outlive it.
  CheckpointEvery(StepRunner& runner, SaveTimes times, Clock& clock = SystemClock())
      : runner_(runner), times_(times), clock_(clock) {}
  Status OnTrainBegin(const Position& position) override;
  Status OnStepEnd(const StepInfo& info) override;
  Status OnEpochEnd(const EpochInfo& info, const Position& position) override;
  Status OnTrainEnd(const FitResult& result) override;

  // Whether `at_latest` has passed.
  bool Overdue() const;
  // Asked after each step in place of Overdue(): where several processes save together, or steps
  // are under way, the time alone does not say whether this step is the one to save after.
  void set_due(std::function<bool()> due) { due_ = std::move(due); }

 private:
  Status Save(const Position& position);

  StepRunner& runner_;
  const SaveTimes times_;
  Clock& clock_;
  std::function<bool()> due_;
  Duration saved_{};  // when, on the monotonic clock
};

// Ends training when `monitor` ("val_loss", "loss", "accuracy", "val_accuracy") has not got better
// by more than `min_delta` for `patience` epochs in a row, and remembers the best epoch. `larger`:
// whether larger figures are better; none: whether the name holds "accuracy". Before
// CheckpointEvery among the callbacks, so that who saves an epoch knows whether it is the best.
class EarlyStopping final : public Callback {
 public:
  EarlyStopping(std::string monitor, int64_t patience, double min_delta = 0,
                std::optional<bool> larger = {})
      : monitor_(std::move(monitor)),
        patience_(patience),
        min_delta_(min_delta),
        larger_(larger.value_or(monitor_.find("accuracy") != std::string::npos)) {}
  // A resumed job goes on counting where it stood; epochs without the figure count for nothing.
  Status OnTrainBegin(const Position& position) override;
  Status OnStepEnd(const StepInfo& info) override;
  // Errors: kInvalidArgument where this run's own steps, or its validation, have no such figure.
  Status OnEpochEnd(const EpochInfo& info, const Position& position) override;
  std::optional<std::string> WantsStop() const override;

  struct Best {
    int64_t epoch = 0;  // from 1
    int64_t step = 0;   // finished steps at its end
    double value = 0;   // of the monitored figure
  };
  // nullopt before the first epoch that has the figure.
  const std::optional<Best>& best() const { return best_; }
  const std::string& monitor() const { return monitor_; }

 private:
  bool Look(const EpochInfo& info);  // whether it has the figure

  std::string monitor_;
  int64_t patience_;
  double min_delta_;
  bool larger_;
  std::optional<Best> best_;
  int64_t wait_ = 0;      // epochs since the best
  bool stepped_ = false;  // in this epoch and run
};

// Callbacks from functions; any may be absent.
struct FunctionCallback final : public Callback {
  std::function<Status(const Position&)> on_train_begin;
  std::function<Status(const StepInfo&)> on_step_end;
  std::function<Status(const BadStepInfo&)> on_bad_step;
  std::function<Status(const EpochInfo&)> on_epoch_end;
  std::function<Status(const FitResult&)> on_train_end;

  Status OnTrainBegin(const Position& p) override {
    return on_train_begin ? on_train_begin(p) : OkStatus();
  }
  Status OnStepEnd(const StepInfo& i) override { return on_step_end ? on_step_end(i) : OkStatus(); }
  Status OnBadStep(const BadStepInfo& i) override {
    return on_bad_step ? on_bad_step(i) : OkStatus();
  }
  Status OnEpochEnd(const EpochInfo& i, const Position&) override {
    return on_epoch_end ? on_epoch_end(i) : OkStatus();
  }
  Status OnTrainEnd(const FitResult& r) override {
    return on_train_end ? on_train_end(r) : OkStatus();
  }
};

}  // namespace meshtrain::train
