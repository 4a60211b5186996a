// The mark of a job that is done, in its last checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/checkpoint/index.h"

namespace meshtrain::saving {

// In a checkpoint's metadata, "true": its job is done, and this is its last one.
inline constexpr std::string_view kFinalKey = "final";
// Beside it, "true": the job was ended before its last epoch, as early stopping does.
inline constexpr std::string_view kEndedEarlyKey = "ended_early";

bool IsFinal(const checkpoint::Index& index);

// Whether a job of so many epochs has nothing left to do behind this checkpoint: it is final, and
// the job that left it had no fewer epochs, or was ended early as this one `may_end_early`.
bool IsFinished(const checkpoint::Index& index, int64_t epochs, bool may_end_early);

// Marks the complete checkpoint at `path` (its own folder); what else it holds stays. Errors:
// base/file.h's; kDataLoss.
Status MarkFinal(const std::string& path, bool ended_early = false);

}  // namespace meshtrain::saving
