// What a Model runs its steps on: the strategy's mesh, or the workers of parameter servers.
//
//   Compile   of one recipe at a time
//   Prepare   the steps for batches of x and y
//   Begin     plans for the batch sizes that are about to come
//   Fit, Evaluate, SendPrediction and TakePrediction
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/nn/parameter.h"
#include "runtime/plan/plan.h"
#include "runtime/program/program.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/loop.h"
#include "runtime/train/programs.h"
#include "runtime/trainer/model.h"

namespace meshtrain::trainer {

class Engine {
 public:
  virtual ~Engine() = default;

  // Steps are of `recipe` from now on, which outlives them. Slots of another optimizer than the
  // last begin anew.
  virtual void Compile(const train::Recipe& recipe) = 0;
  // `types`: of x and y, of a full batch. Makes the weights, the first time.
  virtual Status Prepare(const std::vector<mesh::TensorType>& types) = 0;
  // Batches of these sizes come next. With several processes, which call alike, they compare what
  // they are about to run. `what`: in front of an error.
  virtual Status Begin(std::string_view what, const std::set<int64_t>& training,
                       const std::set<int64_t>& evaluation) = 0;

  // train::Fit and train::Evaluate. The result's step counts every step that changed the weights.
  virtual Result<train::FitResult> Fit(train::BatchSource& batches, train::FitOptions options,
                                       std::span<train::Callback* const> callbacks,
                                       std::stop_token stop) = 0;
  virtual Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                          std::stop_token stop) = 0;
  // Fit on data that whoever runs a step reads for itself; `here`: the same data in this process.
  virtual Result<train::FitResult> FitOwn(const NamedData& data, data::Pipeline& here,
                                          train::FitOptions options,
                                          std::span<train::Callback* const> callbacks,
                                          std::stop_token stop) = 0;

  // A program of one input, x, and one output, that changes nothing; its number.
  virtual Result<size_t> AddPrediction(const program::Program& program, const mesh::TensorType& x,
                                       const std::vector<program::Variable>& variables) = 0;
  // Runs it on `x`; TakePrediction gives the oldest that was sent and not taken. An error of one
  // drops the others.
  virtual Status SendPrediction(size_t prediction, const mesh::Tensor& x) = 0;
  virtual Result<mesh::Tensor> TakePrediction(std::stop_token stop) = 0;
  virtual void DropPredictions() = 0;
  // How many to send ahead of the one that is taken.
  virtual int64_t ahead() const { return 1; }

  // What labels must be (train::Programs); 0 before Prepare.
  virtual int64_t classes() const = 0;
  // Weights and slots of the steps there are; empty before Prepare.
  virtual std::vector<program::Variable> states() const = 0;
  // Of the training step for full batches; null before Prepare, and where there is none here.
  virtual const plan::Plan* plan() const = 0;
};

// `strategy` outlives it.
std::unique_ptr<Engine> MakeMeshEngine(strategy::Strategy& strategy);
std::unique_ptr<Engine> MakeRemoteEngine(strategy::Strategy& strategy);  // of parameter servers

}  // namespace meshtrain::trainer
