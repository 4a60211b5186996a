// Predictions of a whole pass, for a Model as for a trained job.
#pragma once

#include <functional>
#include <stop_token>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/mesh/tensor.h"
#include "runtime/trainer/engine.h"

namespace meshtrain::trainer {

// What the model predicts for the batches of one pass of `data`, in their order, as one tensor for
// each of its outputs. `send` gives a batch to the engine (Engine::SendPrediction). Errors: the
// data's, the engine's; kInvalidArgument where there is no batch, or where predictions have no
// dimension of examples.
Result<std::vector<mesh::Tensor>> PredictPass(
    Engine& engine, data::Pipeline& data,
    const std::function<Status(const data::Batch& batch)>& send, std::stop_token stop);

}  // namespace meshtrain::trainer
