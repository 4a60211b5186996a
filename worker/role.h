// What the roles of a job share: the manifest, the data's batches for the loop, and what is said at
// the end.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/callbacks.h"
#include "worker/config.h"
#include "worker/reporter.h"

namespace meshtrain::worker {

// What errors call the manifest: its file, or the variable that holds it.
std::string SourceName(const Config& config);
// From the file, or from what the environment holds. Errors: ParseManifest's, ReadFile's, all of
// kManifest.
Result<manifest::Manifest> ReadManifest(const Config& config);
// Of the manifest, or "program".
std::string JobName(const manifest::Manifest& manifest);
// Where checkpoints go; `own`: the manifest names no folder, and it is one of the output's.
struct CheckpointFolder {
  std::string path;
  bool own = false;
};
CheckpointFolder CheckpointFolderOf(const Config& config, const manifest::Manifest& manifest);

// The port of this process in TF_CONFIG, whose task must be in its cluster. Errors:
// kInvalidArgument of kManifest.
Result<int> OwnPort(const cluster::TfConfig& config);

using strategy::PipelineBatches;

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

// A line on stdout, at once.
void Say(const std::string& line);
// The last progress, for the operator that may look after this process is gone.
void TellTermination(const Config& config, const std::string& message);
// The epochs, and where everything lies. `checkpoint`: the last one's folder, "" where there is
// none.
void TellResults(const Config& config, const Reporter& reporter, const std::string& checkpoint);
void TellStopped(int64_t step);
// When the job saves and how many it keeps.
void TellSaving(const std::string& folder, const train::SaveTimes& times, int64_t keep);
// A job that begins at its end: all that is left is to write what it leaves.
void TellNothingLeft(const std::string& checkpoint, int64_t epochs);
// Why training ended before its last epoch, and whose weights are left.
void TellEarlyEnd(const train::FitResult& result, const train::EarlyStopping* early,
                  std::optional<int64_t> best_step, Reporter& reporter);
// Where the trained weights go.
std::string ModelPath(const Config& config);

}  // namespace meshtrain::worker
