// What a job's manifest and configuration decide: where it saves and when, when it ends early, and
// what its errors call the manifest.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/recipe/recipe.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::trainer {

// What errors call the manifest: its file, or the variable that holds it.
std::string SourceName(const JobConfig& config);
// Of the manifest, or "program".
std::string JobName(const manifest::Manifest& manifest);
// Where checkpoints go; `own`: the manifest names no folder, and it is one of the output's.
struct CheckpointFolder {
  std::string path;
  bool own = false;
};
CheckpointFolder CheckpointFolderOf(const JobConfig& config, const manifest::Manifest& manifest);

// Declared::CheckBatches of what was opened; `test`: null where there is none.
Status CheckBatches(const recipe::Declared& program, const data::Pipeline& train,
                    const data::Pipeline* test);

// When the job saves: as its manifest says, or else train::kSaveByDefault; and each epoch where the
// best one's weights are wanted.
train::SaveTimes SaveTimesOf(const manifest::Manifest& manifest);
// The manifest's early stopping; nothing where it asks for none.
std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Manifest& manifest);
// The step of the checkpoint whose weights the job leaves, where that is not its last: the best
// epoch's. `early`: null, or the one that watched the job.
std::optional<int64_t> BestStep(const manifest::Manifest& manifest,
                                const train::EarlyStopping* early);

// Where the trained weights go.
std::string ModelPath(const JobConfig& config);

}  // namespace meshtrain::trainer
