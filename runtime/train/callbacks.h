// Callbacks that need nothing but the loop. Progress lines, event files and metrics.jsonl are
// runtime/telemetry's; a FunctionCallback ties them to the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "runtime/train/loop.h"

namespace meshtrain::train {

// Saves every `every` steps, and at the end (stopped early or not) unless that step is saved
// already or the loss was not finite: then the last good checkpoint stays the newest.
class CheckpointEvery final : public Callback {
 public:
  // every <= 0: only at the end. The runner must outlive it.
  CheckpointEvery(StepRunner& runner, int64_t every) : runner_(runner), every_(every) {}
  Status OnStepEnd(const StepInfo& info) override;
  Status OnTrainEnd(const FitResult& result) override;

 private:
  StepRunner& runner_;
  int64_t every_;
};

// Ends training when `monitor` ("val_loss", "loss", "accuracy", "val_accuracy") has not got better
// by more than `min_delta` for `patience` epochs in a row. Names that hold "accuracy" are better
// when larger.
class EarlyStopping final : public Callback {
 public:
  EarlyStopping(std::string monitor, int64_t patience, double min_delta = 0)
      : monitor_(std::move(monitor)), patience_(patience), min_delta_(min_delta) {}
  // A resumed job goes on counting where it stood.
  Status OnTrainBegin(const Position& position) override;
  Status OnEpochEnd(const EpochInfo& info) override;
  bool WantsStop() const override { return wait_ > 0 && wait_ >= patience_; }

 private:
  std::string monitor_;
  int64_t patience_;
  double min_delta_;
  double best_ = std::numeric_limits<double>::quiet_NaN();
  int64_t wait_ = 0;
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
  Status OnEpochEnd(const EpochInfo& i) override {
    return on_epoch_end ? on_epoch_end(i) : OkStatus();
  }
  Status OnTrainEnd(const FitResult& r) override {
    return on_train_end ? on_train_end(r) : OkStatus();
  }
};

}  // namespace meshtrain::train
