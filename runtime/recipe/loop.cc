#include "runtime/recipe/loop.h"

#include <string_view>

#include "runtime/recipe/recipe.h"

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

std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Program& program) {
  const auto& early = program.train.early_stopping;
  if (!early) return std::nullopt;
  std::string_view figure = early->monitor;
  if (figure.starts_with("val_")) figure.remove_prefix(4);
  bool larger = false;
  for (const manifest::Output& output : manifest::Outputs(program)) {
    for (const manifest::Choice& metric : output.metrics) {
      if (FigureName(output, manifest::FigureName(metric)) != figure) continue;
      // One that this program has added may say it by its name.
      larger =
          MetricOf(metric).larger_is_better || metric.kind.find("accuracy") != std::string::npos;
    }
  }
  return train::EarlyStopping(early->monitor, early->patience, early->min_delta, larger);
}

std::optional<int64_t> BestStep(const manifest::Train& train, const train::EarlyStopping* early) {
  const auto& asked = train.early_stopping;
  if (!asked || !asked->restore_best_weights || early == nullptr || !early->best()) {
    return std::nullopt;
  }
  return early->best()->step;
}

}  // namespace meshtrain::recipe
