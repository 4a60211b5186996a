#include "runtime/train/callbacks.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace meshtrain::train {

Status CheckpointEvery::OnTrainBegin(const Position&) {
  saved_ = clock_.Monotonic();
  return OkStatus();
}

Status CheckpointEvery::OnStepEnd(const StepInfo& info) {
  const bool by_steps = times_.every_steps > 0 && info.position.step % times_.every_steps == 0;
  return by_steps || (due_ ? due_() : Overdue()) ? Save(info.position) : OkStatus();
}

Status CheckpointEvery::OnEpochEnd(const EpochInfo&, const Position& position) {
  if (!times_.each_epoch || runner_.last_saved() == position.step) return OkStatus();
  return Save(position);
}

Status CheckpointEvery::OnTrainEnd(const FitResult& result) {
  const bool nothing = result.end == FitEnd::kStopped && result.position.step == 0;
  if (nothing || result.end == FitEnd::kNotFinite || runner_.last_saved() == result.position.step) {
    return OkStatus();
  }
  return Save(result.position);
}

bool CheckpointEvery::Overdue() const {
  return times_.at_latest > Duration(0) && clock_.Monotonic() - saved_ >= times_.at_latest;
}

Status CheckpointEvery::Save(const Position& position) {
  MT_RETURN_IF_ERROR(runner_.Save(position));
  saved_ = clock_.Monotonic();
  return OkStatus();
}

Status EarlyStopping::OnTrainBegin(const Position& position) {
  best_.reset();
  wait_ = 0;
  stepped_ = false;
  if (!position.history) return OkStatus();
  // A run that did not have the metric yet may have finished some of them.
  for (const EpochInfo& epoch : *position.history) Look(epoch);
  return OkStatus();
}

Status EarlyStopping::OnStepEnd(const StepInfo&) {
  stepped_ = true;
  return OkStatus();
}

Status EarlyStopping::OnEpochEnd(const EpochInfo& info, const Position&) {
  const bool validation = monitor_.starts_with("val_");
  const bool stepped = std::exchange(stepped_, false);
  if (Look(info)) return OkStatus();
  // Not validated in this epoch; or all of its examples came before a checkpoint that counts none,
  // or does not have the metric.
  if (validation ? info.validation.empty() : (info.train.empty() || !stepped)) return OkStatus();
  return InvalidArgument("early_stopping: `" + monitor_ + "` is not an output of the step");
}

bool EarlyStopping::Look(const EpochInfo& info) {
  const bool validation = monitor_.starts_with("val_");
  const auto value = FindScalar(validation ? info.validation : info.train,
                                validation ? std::string_view(monitor_).substr(4) : monitor_);
  if (!value) return false;
  const double sign = larger_ ? -1 : 1;
  if (!best_ || std::isnan(best_->value) || sign * *value < sign * best_->value - min_delta_) {
    best_ = Best{.epoch = info.epoch, .step = info.step, .value = *value};
    wait_ = 0;
  } else {
    ++wait_;
  }
  return true;
}

std::optional<std::string> EarlyStopping::WantsStop() const {
  if (wait_ == 0 || wait_ < patience_) return std::nullopt;
  char best[32];
  std::snprintf(best, sizeof best, "%.4f", best_->value);
  return monitor_ + " has not been better than " + best + ", that of epoch " +
         std::to_string(best_->epoch) + ", for " + std::to_string(wait_) +
         (wait_ == 1 ? " epoch" : " epochs");
}

}  // namespace meshtrain::train
