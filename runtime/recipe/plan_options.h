// How a declared program is planned: what `meshtrain plan` prints is what the worker runs.
#pragma once

#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {

// For steps over `declared`, which was made of `program`; `types` are of a full batch and are
// traced only where packs are asked for. Errors: Declared::Trace's.
Result<plan::Options> PlanOptionsOf(const manifest::Program& program, const Declared& declared,
                                    const std::vector<mesh::TensorType>& types);

}  // namespace meshtrain::recipe
