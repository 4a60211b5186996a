#include "runtime/recipe/loop.h"

namespace meshtrain::recipe {

train::LoopOptions LoopOptionsOf(const manifest::Train& train, const train::Position& start) {
  return {.epochs = train.epochs,
          .steps_per_epoch = train.steps_per_epoch,
          .validation_steps = train.validation_steps,
          .validate_every = train.validate_every,
          .end_after_bad_steps = train.end_after_bad_steps,
          .start = start};
}

train::SaveTimes SaveTimesOf(const manifest::Manifest& manifest) {
  train::SaveTimes times = train::kSaveByDefault;
  if (manifest.checkpoint.every_steps > 0) {
    times = {.every_steps = manifest.checkpoint.every_steps};
  }
  const auto& early = manifest.program.train.early_stopping;
  times.each_epoch = times.each_epoch || (early && early->restore_best_weights);
  return times;
}

std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Train& train) {
  const auto& early = train.early_stopping;
  if (!early) return std::nullopt;
  return train::EarlyStopping(early->monitor, early->patience, early->min_delta);
}

std::optional<int64_t> BestStep(const manifest::Train& train, const train::EarlyStopping* early) {
  const auto& asked = train.early_stopping;
  if (!asked || !asked->restore_best_weights || early == nullptr || !early->best()) {
    return std::nullopt;
  }
  return early->best()->step;
}

}  // namespace meshtrain::recipe
