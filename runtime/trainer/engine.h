// What runs the steps of training, for a Model as for a training job: the devices of a strategy's
// mesh, or the workers of parameter servers.
//
//   Compile   of one recipe at a time
//   Prepare   the steps for batches of the recipe's components
//   Plan      for the batch sizes that are about to come; Agree: all processes have the same plans and data
//   Fit, Evaluate, SendPrediction and TakePrediction
//
// One thread, but for what says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/nn/parameter.h"
#include "runtime/plan/plan.h"
#include "runtime/program/program.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/callbacks.h"
#include "runtime/train/loop.h"
#include "runtime/train/prediction.h"
#include "runtime/train/programs.h"
#include "runtime/trainer/mesh_runner.h"
#include "runtime/trainer/model.h"

namespace meshtrain::trainer {

// What a Fit saves, and when.
struct Saves {
  train::SaveTimes times;
  // Saves the states, which are those of the position, and the position. May return before the
  // save is durable.
  std::function<Status(const train::Position&)> save;
  int64_t last_saved = -1;  // the newest step that a save holds already; -1: none
};

// What a Fit runs over.
struct FitWork {
  // Batches of this process; or, where there is `own`, what each who runs a step reads for itself.
  // `here`: the pipeline that they come from, or the same data in this process; null: none.
  train::BatchSource* batches = nullptr;
  const NamedData* own = nullptr;
  data::Pipeline* here = nullptr;

  train::LoopOptions options;
  std::vector<train::Callback*> callbacks;
  std::optional<Saves> saves;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Steps are of `recipe` from now on, which outlives them. Slots of another optimizer than the
  // last begin anew. `trace`: how it becomes programs and layouts; null: over the strategy's mesh,
  // with batches split over its batch axis.
  virtual void Compile(const train::Recipe& recipe, MeshRunner::Trace trace) = 0;
  void Compile(const train::Recipe& recipe) { Compile(recipe, nullptr); }
  // `types`: of a full batch's components. Makes the weights, the first time.
  virtual Status Prepare(const std::vector<mesh::TensorType>& types) = 0;
  // Batches of these sizes come next. `what`: in front of an error.
  virtual Status Plan(std::string_view what, const std::set<int64_t>& training,
                      const std::set<int64_t>& evaluation) = 0;
  // With several processes, which call alike: that all are about to run what was planned last, on
  // data of one order. Null: a pipeline that there is not.
  virtual Status Agree(std::initializer_list<const data::Pipeline*> data, std::stop_token stop) = 0;
  // Every state has its first value again: the weights `given`, one for each, where there are any.
  virtual Status BeginAnew(std::span<const mesh::Tensor> given) = 0;

  // Each weight and slot of the steps there are takes its value out of `values`, by its name in
  // checkpoints. Errors: kInvalidArgument naming one of another type, with nothing written.
  virtual Status Give(std::map<std::string, mesh::Tensor>& values) = 0;

  // train::Fit and train::Evaluate. The result's step counts every step that changed the weights.
  // With a team all processes stop and save after the same step, whoever was asked to (StopVote).
  virtual Result<train::FitResult> Fit(FitWork work, std::stop_token stop) = 0;
  // Whether the last Fit stopped because another process was asked to.
  virtual bool stopped_by_another() const { return false; }
  virtual Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                          std::stop_token stop) = 0;

  // A program that changes nothing but what it keeps; its number. Inputs are split over the batch
  // axis, where there is one; or, `whole`, they are on every device. Of those that keep something
  // only where `keeps()`.
  virtual Result<size_t> AddPrediction(const train::Prediction& prediction, bool whole) = 0;
  virtual bool keeps() const { return false; }
  // It is sent no more; what it has sent can be taken. False: it stays, as with parameter servers,
  // where every worker knows it.
  virtual bool RemovePrediction(size_t prediction) = 0;
  // Runs it on its inputs; TakePrediction gives the oldest that was sent and not taken: the
  // program's outputs, in their order. An error of one drops the others.
  virtual Status SendPrediction(size_t prediction, std::span<const mesh::Tensor> inputs) = 0;
  virtual Result<std::vector<mesh::Tensor>> TakePrediction(std::stop_token stop) = 0;
  virtual void DropPredictions() = 0;
  // How many to send ahead of the one that is taken.
  virtual int64_t ahead() const { return 1; }

  // Which examples of a batch of `size`, which was planned for, this process uses: [first, second).
  virtual std::pair<int64_t, int64_t> UsedOf(int64_t size) const { return {0, size}; }

  // What labels and ids must be (train::Programs); empty before Prepare.
  virtual std::map<std::string, int64_t> classes() const = 0;
  virtual std::map<std::string, int64_t> rows() const = 0;
  // Weights and slots of the steps there are; empty before Prepare.
  virtual std::vector<program::Variable> states() const = 0;
  // As traced, and as planned, for full batches; null before Prepare, and where that is not done
  // here.
  virtual const train::Programs* programs() const { return nullptr; }
  virtual const plan::Plan* plan() const { return nullptr; }
  // What the kernels of that training step need on a device beside the plan's memory.
  virtual int64_t scratch_bytes() const { return 0; }

  // --- figures of a run, for any thread
  // Seconds of each rank's last step, without waiting for others; NaN: it has not ended one. Empty
  // where nobody knows.
  virtual std::vector<double> RankStepSeconds() const { return {}; }
  // That this process's devices sent in collectives so far.
  virtual int64_t CollectiveBytesSent() const { return 0; }
  // How long the last step stood in, or waited for, collectives with other processes. Asked within
  // Fit, by its callbacks.
  virtual Duration CollectiveTime() const { return {}; }
};

// What the engine's steps ask of labels and ids is asked of the batches that `data` hands out.
inline void Expect(const Engine& engine, data::Pipeline& data) {
  data.ExpectClasses(engine.classes());
  data.ExpectIds(engine.rows());
}

// From now on `data` asks its source only for what this process uses of the batches that were
// planned for. For data that nobody else reads.
inline void UseOwnPart(const Engine& engine, data::Pipeline& data) {
  std::map<int64_t, std::pair<int64_t, int64_t>> used;
  for (const int64_t size : data.batch_sizes()) used.emplace(size, engine.UsedOf(size));
  data.UseOnly([used = std::move(used)](int64_t size) {
    const auto of_size = used.find(size);
    return of_size == used.end() ? std::pair<int64_t, int64_t>(0, size) : of_size->second;
  });
}

// Each of `variables`, which are `strategy`'s, takes its value out of `values`. Errors:
// Engine::Give's.
Status GiveTo(strategy::Strategy& strategy, std::span<const program::Variable> variables,
              std::map<std::string, mesh::Tensor>& values);

// Each `strategy` outlives its engine.
struct MeshEngineOptions {
  // States lie on the mesh with zeros until BeginAnew, or until they are written; else they begin
  // with what the strategy holds for them.
  bool declare_only = false;
};
std::unique_ptr<Engine> MakeMeshEngine(strategy::MeshStrategy& strategy,
                                       MeshEngineOptions options = {});
struct ServerEngineOptions {
  // Requested when steps that are under way have no time left.
  std::stop_token end_steps;
};
std::unique_ptr<Engine> MakeServerEngine(strategy::ServerStrategy& strategy,
                                         ServerEngineOptions options = {});
// Of the kind that the strategy is.
std::unique_ptr<Engine> MakeEngine(strategy::Strategy& strategy);

}  // namespace meshtrain::trainer
