// The plans of a declared program's steps: what `meshtrain plan` prints. A worker's session makes
// the same ones (trainer/job's tests hold the two hashes together), of the same options
// (plan::OptionsOn) and on the same layouts (Declared::Trace).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {

enum class JobStep : uint8_t { kTrain, kEvaluate, kInitialize };

// Of `declared`, which was made of `program`, for batches of one size: `types` are of their
// components. Beside parameter servers it is the step of one worker's devices. Errors:
// Declared::Trace's, sharding::Shard's, plan::MakePlan's.
Result<plan::Plan> StepPlanOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types,
                              JobStep kind = JobStep::kTrain);

// Whether each device has memory of its own, by its kind or by what the strategy says of its sums.
bool IsIsolated(const manifest::Program& program);

// The training step as it is asked for, and as it runs: where devices share memory, on the mesh
// that is left when those of each process act as one (sharding::CollapseLocal), so that its bytes
// are a process'. Where they are isolated the two are the same.
struct StepPlans {
  plan::Plan asked, run;
};
// Errors: StepPlanOf's, CollapseLocal's.
Result<StepPlans> StepPlansOf(const manifest::Program& program, const Declared& declared,
                              const std::vector<mesh::TensorType>& types);

}  // namespace meshtrain::recipe
