// The one header a program of one's own includes.
#pragma once

#include "runtime/base/status.h"
#include "runtime/data/idx.h"
#include "runtime/data/pipeline.h"
#include "runtime/distribute/join_team.h"
#include "runtime/distribute/parameter/coordinator.h"
#include "runtime/distribute/parameter/environment.h"
#include "runtime/distribute/parameter/server.h"
#include "runtime/distribute/parameter/worker_server.h"
#include "runtime/distribute/saving/session_checkpoints.h"
#include "runtime/distribute/strategy/dataset.h"
#include "runtime/distribute/strategy/estimator.h"
#include "runtime/distribute/strategy/model.h"
#include "runtime/distribute/strategy/multi_worker.h"
#include "runtime/distribute/strategy/parameter_server.h"
#include "runtime/distribute/strategy/progress_bar.h"
#include "runtime/distribute/strategy/strategy.h"
#include "runtime/distribute/strategy/tensorboard.h"
#include "runtime/distribute/strategy/tpu.h"
#include "runtime/distribute/team.h"
#include "runtime/execute/function.h"
#include "runtime/execute/session.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/mesh.h"
#include "runtime/mesh/tensor.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"

namespace meshtrain {

using distribute::JoinTeam;
using distribute::SessionCheckpoints;
using distribute::Team;
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
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using mesh::TensorType;
using mesh::UNSHARDED;
using program::Value;
using program::Variable;
using sharding::CheckAxesUsed;

// CreateMesh({{"batch", 8}}): eight logical devices of this process, unless `devices` names others.
inline Result<Mesh> CreateMesh(std::vector<mesh::Axis> axes,
                               std::vector<mesh::Device> devices = {}) {
  return Mesh::Create(std::move(axes), std::move(devices));
}

}  // namespace meshtrain
