// The plan of a declared program's training step: what `meshtrain plan` prints. A worker's session
// makes the same one (trainer/job's tests hold the two hashes together), of the same options
// (plan::OptionsOn) and on the same layouts (Declared::Trace).
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {

// Of `declared`, which was made of `program`, for full batches: `types` are of their components.
// Beside parameter servers it is the step of one worker's devices. Errors: Declared::Trace's,
// sharding::Shard's, plan::MakePlan's.
Result<plan::Plan> StepPlanOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types);

}  // namespace meshtrain::recipe
