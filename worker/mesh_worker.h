// A process of a mesh: one of those that run the same program over a mesh of devices, or the only
// one.
#pragma once

#include <stop_token>

#include "runtime/base/status.h"
#include "runtime/spec/spec.h"
#include "worker/config.h"

namespace meshtrain::worker {

// Trains what the manifest declares, and comes back when the job is done (OK), was stopped
// (Stopped()), or cannot go on.
Status RunMeshWorker(const Config& config, spec::Manifest manifest, std::stop_token stop);

}  // namespace meshtrain::worker
