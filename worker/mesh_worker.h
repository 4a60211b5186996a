// A process of a mesh: one of those that run the same program over a mesh of devices, or the only
// one.
#pragma once

#include <functional>
#include <stop_token>

#include "runtime/spec/spec.h"
#include "worker/config.h"
#include "worker/ending.h"

namespace meshtrain::worker {

// Trains what the manifest declares, and comes back when the job is done, was stopped, or cannot go
// on.
Ending RunMeshWorker(const Config& config, spec::Manifest manifest, std::stop_token stop,
                     const std::function<int()>& stop_exit_code);

}  // namespace meshtrain::worker
