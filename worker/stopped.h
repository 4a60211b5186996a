// How a role ends that was asked to stop and has done what there was to do before.
#pragma once

#include "runtime/base/status.h"

namespace meshtrain::worker {

// Nothing went wrong; cluster::ExitCodeOf makes the signal's exit code of it.
inline Status Stopped() { return Cancelled("stopped as asked").From(Origin::kStop); }

}  // namespace meshtrain::worker
