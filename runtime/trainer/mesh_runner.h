// Runs traced steps on a session, one plan per batch size over one set of states: what train::Fit
// calls, for a declared program as for a Model.
//
// Kept true: the steps of all batch sizes share one set of states; a bad training step leaves them
// as they were (LoadedStep::Run).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/train/loop.h"
#include "runtime/train/packing.h"
#include "runtime/train/programs.h"

namespace meshtrain::trainer {

// One batch size's programs, and the layouts of their inputs and states (by name).
struct TracedSteps {
  train::Programs programs;
  sharding::Given layouts;
};

class MeshRunner final : public train::StepRunner {
 public:
  // `types`: of one batch's components. Gives the same variables whatever the size.
  using Trace = std::function<Result<TracedSteps>(const std::vector<mesh::TensorType>& types)>;
  struct Options {
    std::vector<mesh::TensorType> types;  // of one full batch's components
    train::Packing packing = {};          // of gradients; none given: as the session's options say
    // Gives the states a value in the session; without one they are declared with zeros, in these
    // layouts: call Initialize or write them.
    std::function<Status(const std::vector<nn::Parameter>& states, const sharding::Given& layouts)>
        declare = {};
  };
  // Traces the steps, plans and compiles that of full batches. `session` outlives the runner.
  static Result<std::unique_ptr<MeshRunner>> Create(execute::Session& session, mesh::Mesh mesh,
                                                    Trace trace, Options options);

  // Gives every state its initial value.
  Status Initialize();
  // Plans for one more batch size; one that comes unplanned is planned then. Nothing where that was
  // done.
  Status PlanTraining(int64_t size);
  Status PlanEvaluation(int64_t size);

  // Which examples of a batch of `size` this process uses: [first, second). All where no step for
  // such batches is planned.
  std::pair<int64_t, int64_t> UsedOf(int64_t size) const;

  Result<train::BatchFigures> TrainStep(const train::Batch& batch) override;
  Result<train::BatchFigures> EvalStep(const train::Batch& batch) override;
  Status Save(const train::Position& position) override;
  int64_t last_saved() const override { return last_saved_; }
  std::vector<train::FigureSums> summed() const override { return programs_.summed; }
  Duration waited() const { return waited_; }  // of the last step: for other processes

  // What Save calls; without one Save does nothing.
  void set_saver(std::function<Status(const train::Position& position)> saver) {
    saver_ = std::move(saver);
  }
  void set_last_saved(int64_t step) { last_saved_ = step; }

  // Weights, then slots.
  const std::vector<nn::Parameter>& states() const { return states_; }
  const train::Programs& programs() const { return programs_; }
  // The training step for full batches, on the user's mesh.
  const plan::Plan& plan() const;
  // LoadedStep's, of that step.
  int64_t scratch_bytes() const;
  const mesh::Mesh& mesh() const { return mesh_; }
  // That this process's devices sent in collectives so far.
  int64_t CollectiveBytesSent() const;
  // Of a step that was planned for; equal where processes are about to do the same.
  uint64_t plan_hash(bool training, int64_t size) const;

 private:
  struct Steps {
    program::Program program;  // as traced
    std::unique_ptr<execute::LoadedStep> step;
  };
  using BySize = std::map<int64_t, Steps>;
  MeshRunner(execute::Session& session, mesh::Mesh mesh, Trace trace, Options options)
      : session_(session),
        mesh_(std::move(mesh)),
        trace_(std::move(trace)),
        o_(std::move(options)) {}
  Result<TracedSteps> TraceSize(int64_t size) const;
  Status Load(const program::Program& program, BySize& into, int64_t size);
  Result<train::BatchFigures> Run(Steps& steps, const train::Batch& batch);
  Result<std::vector<program::Variable>> VariablesOf(const program::Program& program) const;

  execute::Session& session_;
  mesh::Mesh mesh_;
  Trace trace_;
  Options o_;
  sharding::Given layouts_;
  train::Programs programs_;
  std::vector<nn::Parameter> states_;
  std::map<std::string, program::Variable> by_name_;
  BySize train_, eval_;
  int64_t full_size_ = 0;
  std::function<Status(const train::Position&)> saver_;
  int64_t last_saved_ = -1;
  Duration waited_{};
};

}  // namespace meshtrain::trainer
