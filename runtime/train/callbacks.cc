#include "runtime/train/callbacks.h"

#include <cmath>
#include <cstdio>

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
  if (!position.history) return OkStatus();
  for (const EpochInfo& epoch : *position.history) MT_RETURN_IF_ERROR(Look(epoch));
  return OkStatus();
}

Status EarlyStopping::OnEpochEnd(const EpochInfo& info, const Position&) { return Look(info); }

Status EarlyStopping::Look(const EpochInfo& info) {
  const bool validation = monitor_.starts_with("val_");
  const Scalars& scalars = validation ? info.validation : info.train;
  const auto value =
      FindScalar(scalars, validation ? std::string_view(monitor_).substr(4) : monitor_);
  if (!value) {
    // Not validated in this epoch; or all of its examples came before a checkpoint that counts
    // none.
    if (scalars.empty()) return OkStatus();
    return InvalidArgument("early_stopping: `" + monitor_ + "` is not an output of the step");
  }
  const double sign = larger_ ? -1 : 1;
  if (!best_ || std::isnan(best_->value) || sign * *value < sign * best_->value - min_delta_) {
    best_ = Best{.epoch = info.epoch, .step = info.step, .value = *value};
    wait_ = 0;
  } else {
    ++wait_;
  }
  return OkStatus();
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
