// How a manifest's training runs: its loop, when it saves, when it ends early. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/manifest/manifest.h"
#include "runtime/train/callbacks.h"
#include "runtime/train/loop.h"

namespace meshtrain::recipe {

// Without the validation's data; a manifest that never validates gives it none.
train::LoopOptions LoopOptionsOf(const manifest::Train& train, const train::Position& start);

// When the job saves: as its manifest says, or else train::kSaveByDefault; and each epoch where the
// best one's weights are wanted.
train::SaveTimes SaveTimesOf(const manifest::Manifest& manifest);
// The manifest's early stopping; nothing where it asks for none.
std::optional<train::EarlyStopping> EarlyStoppingOf(const manifest::Program& program);
// The step of the checkpoint whose weights the job leaves, where that is not its last: the best
// epoch's. `early`: null, or the one that watched the job.
std::optional<int64_t> BestStep(const manifest::Train& train, const train::EarlyStopping* early);

}  // namespace meshtrain::recipe
