// The strategy of a manifest: the object that C++ makes (runtime/strategy/strategy.h), from the
// manifest's words and where the process runs.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "runtime/base/status.h"
#include "runtime/membership/team.h"
#include "runtime/mesh/mesh.h"
#include "runtime/recipe/recipe.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/strategy/strategy.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::trainer {

// What the makers take of a manifest; processes, folders and addresses are not in it. Pure.
strategy::MirroredOptions MirroredOptionsOf(const JobConfig& config,
                                            const manifest::Program& program);
strategy::MultiWorkerOptions MultiWorkerOptionsOf(const JobConfig& config,
                                                  const manifest::Program& program);
strategy::ParameterServerOptions ServerOptionsOf(const manifest::Manifest& manifest);

// Any but ParameterServer. `declared`: the manifest's program; `team`: joined, null for one
// process. Kept true: its mesh is that of the declared program. Errors: the maker's.
Result<std::unique_ptr<strategy::MeshStrategy>> MakeMeshStrategy(
    const JobConfig& config, const manifest::Manifest& manifest, const recipe::Declared& declared,
    std::shared_ptr<membership::Team> team);

// ParameterServer, in its chief: a session on the servers, with the values of the checkpoint in the
// folder `restore`, "": the first ones. `folder`: of the checkpoints to come. Needs
// config.job.tf_config. Errors: Coordinator::Create's.
Result<std::unique_ptr<strategy::ServerStrategy>> MakeServerStrategy(
    const JobConfig& config, const manifest::Manifest& manifest, const std::string& folder,
    const std::string& restore, std::stop_token stop);

// Whether each device has memory of its own, by the command line or by the manifest
// (recipe::IsIsolated).
bool IsIsolated(const JobConfig& config, const manifest::Manifest& manifest);

}  // namespace meshtrain::trainer
