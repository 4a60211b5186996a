#include "runtime/train/callbacks.h"

#include <cmath>

namespace meshtrain::train {

Status CheckpointEvery::OnStepEnd(const StepInfo& info) {
  if (every_ <= 0 || info.position.step % every_ != 0) return OkStatus();
  return runner_.Save(info.position.step);
}

Status CheckpointEvery::OnTrainEnd(const FitResult& result) {
  if (result.end == FitEnd::kNotFinite || runner_.last_saved() == result.position.step) {
    return OkStatus();
  }
  return runner_.Save(result.position.step);
}

Status EarlyStopping::OnTrainBegin(const Position& position) {
  best_ = std::numeric_limits<double>::quiet_NaN();
  wait_ = 0;
  if (!position.history) return OkStatus();
  for (const EpochInfo& epoch : *position.history) MT_RETURN_IF_ERROR(OnEpochEnd(epoch));
  return OkStatus();
}

Status EarlyStopping::OnEpochEnd(const EpochInfo& info) {
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
  const double sign = monitor_.find("accuracy") != std::string::npos ? -1 : 1;
  if (std::isnan(best_) || sign * *value < sign * best_ - min_delta_) {
    best_ = *value;
    wait_ = 0;
  } else {
    ++wait_;
  }
  return OkStatus();
}

}  // namespace meshtrain::train
