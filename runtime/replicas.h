// Beside meshtrain.h: custom loops over the replicas of a strategy. docs/strategies.md tells how.
#pragma once

#include "runtime/meshtrain.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/multi_worker.h"
#include "runtime/strategy/replica_context.h"
#include "runtime/strategy/replica_function.h"
#include "runtime/strategy/values.h"

namespace meshtrain {

using strategy::ArraysPipeline;
using strategy::ComputeAverageLoss;
using strategy::DistributedDataset;
using strategy::DistributedIterator;
using strategy::JoinedWorker;
using strategy::JoinMultiWorkerMirrored;
using strategy::PerReplica;
using strategy::PerReplicaBatch;
using strategy::ReduceOp;
using strategy::RegularizationLoss;
using strategy::ReplicaContext;
using strategy::ReplicaFunction;
using strategy::ScaleRegularizationLoss;

}  // namespace meshtrain
