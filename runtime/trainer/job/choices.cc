#include "runtime/trainer/job/choices.h"

#include "runtime/cluster/contract.h"

namespace meshtrain::trainer {

std::string SourceName(const JobConfig& config) {
  return config.file.empty() ? std::string(cluster::kEnvProgram) : config.file;
}

std::string JobName(const manifest::Manifest& manifest) {
  return manifest.name.empty() ? "program" : manifest.name;
}

CheckpointFolder CheckpointFolderOf(const JobConfig& config, const manifest::Manifest& manifest) {
  if (manifest.checkpoint.path.empty()) return {config.output + "/checkpoints", true};
  return {manifest.checkpoint.path, false};
}

Status CheckBatches(const recipe::Declared& program, const data::Pipeline& train,
                    const data::Pipeline* test) {
  const auto batches = [](const data::Pipeline& data) {
    return recipe::Batches{data.BatchTypes(data.batch_size()), data.batch_sizes()};
  };
  return program.CheckBatches(batches(train),
                              test == nullptr ? std::nullopt : std::optional(batches(*test)));
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

std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Manifest& manifest) {
  const auto& early = manifest.program.train.early_stopping;
  if (!early) return std::nullopt;
  return train::EarlyStopping(early->monitor, early->patience, early->min_delta);
}

std::optional<int64_t> BestStep(const manifest::Manifest& manifest,
                                const train::EarlyStopping* early) {
  const auto& asked = manifest.program.train.early_stopping;
  if (!asked || !asked->restore_best_weights || early == nullptr || !early->best()) {
    return std::nullopt;
  }
  return early->best()->step;
}

std::string ModelPath(const JobConfig& config) { return config.output + "/model.safetensors"; }

}  // namespace meshtrain::trainer
