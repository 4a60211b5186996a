// The header that a program of one's own includes: meshes and layouts, sessions, variables and
// functions, data, layers, losses, optimizers and metrics, models and strategies.
//
// It reaches at most 30 headers (tests/face_headers_test.cmake). What only some programs need has
// its own header beside this one:
//   runtime/replicas.h            custom loops over the replicas of a strategy
//   runtime/parameter_servers.h   the processes of parameter servers, and loops over them
//   runtime/train/schedules.h     learning rates that follow from the step
//   runtime/trainer/label_metric.h, estimator.h, progress_bar.h, tensorboard.h
//   runtime/execute/loaded_step.h, plan/plan.h   steps one by one, and their plans
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/execute/function.h"
#include "runtime/execute/session.h"
#include "runtime/membership/team.h"
#include "runtime/mesh/layout.h"
#include "runtime/mesh/mesh.h"
#include "runtime/mesh/tensor.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/layout_map.h"
#include "runtime/nn/model.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"
#include "runtime/saving/session_checkpoints.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "runtime/trainer/model.h"

namespace meshtrain {

using execute::CallWithLayout;
using execute::DTensor;
using execute::DVariable;
using execute::FetchLayout;
using execute::Function;
using execute::MeanMetric;
using execute::Outputs;
using execute::RepackLocalTensor;
using execute::Results;
using execute::Session;
using execute::SessionOptions;
using execute::Uneven;
using membership::JoinTeam;
using membership::Team;
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::Tensor;
using mesh::TensorType;
using mesh::UNSHARDED;
using nn::RandomSeed;
using nn::SetRandomSeed;
using program::Value;
using program::Variable;
using saving::SessionCheckpoints;
using strategy::CentralStorageOptions;
using strategy::CrossDeviceOps;
using strategy::GetStrategy;
using strategy::HasStrategy;
using strategy::MeshOptions;
using strategy::MeshStrategy;
using strategy::MirroredOptions;
using strategy::MultiWorkerOptions;
using strategy::ReplicaStrategy;
using strategy::Strategy;
using strategy::StrategyOptions;
using strategy::StrategyScope;
using strategy::TpuClusterResolver;
using trainer::Arrays;
using trainer::CompileOptions;
using trainer::FitOptions;
using trainer::History;
using trainer::Model;

// CreateMesh({{"batch", 8}}): eight logical devices of this process, unless `devices` names others.
inline Result<Mesh> CreateMesh(std::vector<mesh::Axis> axes,
                               std::vector<mesh::Device> devices = {}) {
  return Mesh::Create(std::move(axes), std::move(devices));
}

// Whether `used`, the axes that the program says it lays something out over, are all axes of more
// than one device: along any other every device would compute the same. Takes the program's word
// and looks at no layout. Errors: kInvalidArgument, of Origin::kManifest.
Status CheckAxesUsed(const Mesh& mesh, const std::vector<std::string>& used);

// The processes of one mesh, or this one alone, with a session for this process's part of it.
struct Job {
  std::unique_ptr<Team> team;  // null: alone
  Mesh mesh;                   // over all processes
  std::unique_ptr<Session> session;

  // Joins those that TF_CONFIG names. `options`: process and communicator are set here. Call it
  // before anything is computed. Errors: JoinTeam's, and of a mesh that does not divide.
  static Result<Job> Join(const Mesh& mesh, SessionOptions options = {});
  bool chief() const { return team == nullptr || team->chief(); }
  // Tells the others that this process is done; they wait for it otherwise.
  Status Leave() const;
};

// "epoch 1: train loss 0.8312, train accuracy 0.7720, test loss 0.3402, test accuracy 0.9010".
std::string EpochLine(const train::EpochInfo& epoch);
// Writes a page with the curves of the epochs that `position` knows: one HTML file without outside
// resources. Errors: base/file.h's, of Origin::kOutput.
Status WriteCurves(const std::string& path, const std::string& title,
                   const train::Position& position);

// Says an error of `end` on stderr, after the program's name; the code to leave with
// (cluster::ExitCodeOf): int main() { return RunMain("my_program", Main()); }
int RunMain(std::string_view program, const Status& end);

// Says what is wrong with the arguments as RunMain says an error; the code to leave with, 64, at
// which the operator starts nothing again.
int EndOfUsage(std::string_view program, std::string_view what);

}  // namespace meshtrain
