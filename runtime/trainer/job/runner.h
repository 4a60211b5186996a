// The runner of a declared program's steps.
#pragma once

#include <memory>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/mesh_runner.h"

namespace meshtrain::trainer {

// Traces, plans and compiles every step; the states are zero until Initialize, or until they are
// written. Errors: those of the trace, with the place in the manifest.
Result<std::unique_ptr<MeshRunner>> MakeRunner(execute::Session& session,
                                               const recipe::Declared& declared,
                                               MeshRunner::Options options);

}  // namespace meshtrain::trainer
