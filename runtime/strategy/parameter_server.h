// The chief's strategy of parameter servers: variables lie on the servers, steps run on the
// workers, each in its own time.
//
//   MT_ASSIGN_OR_RETURN(auto options, parameter::OptionsFromEnvironment());  // TF_CONFIG
//   MT_ASSIGN_OR_RETURN(auto strategy, Strategy::ParameterServer({.coordinator = options}));
//   auto scope = strategy->Scope();
//   Model model(...);  // Compile, Fit, Evaluate, Predict, as under every strategy
//   ...
//   strategy->coordinator()->End();  // the job is done: servers and workers may go
//
// Batches are read here and sent with their steps; an epoch's steps have all ended when the epoch
// does, so what is validated and saved then is the work of exactly those steps. There are no
// replicas that go together: Run, Reduce and distributed datasets are refused (kUnimplemented). A
// loop of one's own schedules its steps: strategy->coordinator()->Schedule.
#pragma once

#include <cstdint>

#include "runtime/parameter/chief/coordinator.h"

namespace meshtrain::strategy {

struct ParameterServerOptions {
  // Its cluster and identity are OptionsFromEnvironment's; its steps_in_flight is set by the next.
  parameter::CoordinatorOptions coordinator;
  // Steps that run at once, in the whole job. 1: each begins with what the one before it left, as
  // in a single process. 0: one for each worker.
  int64_t steps_in_flight = 0;
};

}  // namespace meshtrain::strategy
