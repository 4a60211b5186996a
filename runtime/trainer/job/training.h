// A training job from its data to the model that it leaves, whoever takes part in it (stages.h): it
// goes on from the newest checkpoint, trains with what reports and saves, and says how it ended.
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/recipe/recipe.h"
#include "runtime/trainer/job/config.h"
#include "runtime/trainer/job/stages.h"

namespace meshtrain::trainer {

using MakeStages = std::unique_ptr<JobStages> (*)(const JobParts& job);

// OK when the job is done, cluster::Stopped() when it was asked to stop and has saved; else why it
// cannot go on.
Status RunTraining(const JobConfig& config, manifest::Manifest manifest, MakeStages make,
                   std::stop_token stop);

}  // namespace meshtrain::trainer
