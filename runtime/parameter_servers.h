// Beside meshtrain.h: the processes of parameter servers, the chief's strategy, and loops of one's
// own over its coordinator. docs/parameter-servers.md tells how.
#pragma once

#include "runtime/meshtrain.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/server/server.h"
#include "runtime/parameter/worker/worker_server.h"
#include "runtime/strategy/server_strategy.h"

namespace meshtrain {

using strategy::ParameterServerOptions;
using strategy::ServerStrategy;

}  // namespace meshtrain
