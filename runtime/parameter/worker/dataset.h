// A worker's own input pipeline, from what the coordinator says about all of them.
#pragma once

#include <memory>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/parameter/messages/messages.h"

namespace meshtrain::parameter {

// The spec of worker `worker` of `workers`. With ShardPolicy::kWhole its shuffles and maps draw
// from a seed of its own; worker 0 keeps the seed as written, so that one worker goes through the
// data as a single process does. kByElement deals the elements out before every stage: the worker
// keeps every `workers`th. Pure.
data::PipelineSpec SpecOf(const Dataset& dataset, int worker, int workers);

// The pipeline of that spec, begun. Errors name the dataset and are of Origin::kInput: the
// source's; kInvalidArgument where the worker would get no element, or its files hold another
// number of examples than Dataset::examples (an old copy).
Result<std::unique_ptr<data::Pipeline>> MakePipeline(const Dataset& dataset, int worker,
                                                     int workers);

}  // namespace meshtrain::parameter
