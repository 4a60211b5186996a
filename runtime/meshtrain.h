// The one header a program of one's own includes.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/idx.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/function.h"
#include "runtime/execute/session.h"
#include "runtime/membership/join_team.h"
#include "runtime/membership/team.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/mesh.h"
#include "runtime/mesh/tensor.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/environment.h"
#include "runtime/parameter/server/server.h"
#include "runtime/parameter/worker/worker_server.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/saving/session_checkpoints.h"
#include "runtime/sharding/sharding.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/multi_worker.h"
#include "runtime/strategy/parameter_server.h"
#include "runtime/strategy/strategy.h"
#include "runtime/strategy/tpu.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "runtime/trainer/estimator.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/progress_bar.h"
#include "runtime/trainer/tensorboard.h"

namespace meshtrain {

using execute::CallWithLayout;
using execute::DTensor;
using execute::DVariable;
using execute::FetchLayout;
using execute::Function;
using execute::Outputs;
using execute::RepackLocalTensor;
using execute::Session;
using execute::SessionOptions;
using execute::Uneven;
using membership::JoinTeam;
using membership::Team;
using membership::TeamOptions;
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using mesh::TensorType;
using mesh::UNSHARDED;
using program::Value;
using program::Variable;
using saving::SessionCheckpoints;
using sharding::CheckAxesUsed;
using strategy::ArraysPipeline;
using strategy::CentralStorageOptions;
using strategy::ComputeAverageLoss;
using strategy::CrossDeviceOps;
using strategy::DistributedDataset;
using strategy::DistributedIterator;
using strategy::GetStrategy;
using strategy::HasStrategy;
using strategy::JoinedWorker;
using strategy::JoinMultiWorkerMirrored;
using strategy::MirroredOptions;
using strategy::MultiWorkerOptions;
using strategy::ParameterServerOptions;
using strategy::PerReplica;
using strategy::PerReplicaBatch;
using strategy::ReduceOp;
using strategy::RegularizationLoss;
using strategy::ReplicaContext;
using strategy::ReplicaFunction;
using strategy::ScaleRegularizationLoss;
using strategy::Strategy;
using strategy::StrategyOptions;
using strategy::StrategyScope;
using strategy::TpuClusterResolver;
using trainer::Arrays;
using trainer::CompileOptions;
using trainer::Evaluation;
using trainer::Examples;
using trainer::FitOptions;
using trainer::History;
using trainer::LinearRegressor;
using trainer::Model;
using trainer::NumericColumn;
using trainer::ProgressBar;
using trainer::RunConfig;
using trainer::TensorBoard;

// CreateMesh({{"batch", 8}}): eight logical devices of this process, unless `devices` names others.
inline Result<Mesh> CreateMesh(std::vector<mesh::Axis> axes,
                               std::vector<mesh::Device> devices = {}) {
  return Mesh::Create(std::move(axes), std::move(devices));
}

}  // namespace meshtrain
