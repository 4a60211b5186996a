// The manifest that a process was given.
#pragma once

#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::worker {

// From the file, or from what the environment holds. Errors: ParseManifest's, ReadFile's, all of
// kManifest.
Result<manifest::Manifest> ReadManifest(const trainer::JobConfig& config);

}  // namespace meshtrain::worker
