// Runs a declared program's steps on a session: what train::Fit calls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/execute/session.h"
#include "runtime/spec/spec.h"
#include "runtime/train/loop.h"

namespace meshtrain::worker {

// Kept true: the steps of all batch sizes share one set of states; a training step whose loss is not finite leaves them
// as they were.
class SessionRunner final : public train::StepRunner {
 public:
  struct Options {
    std::vector<mesh::TensorType> types;  // of one full batch's components
    std::set<int64_t> train_sizes;        // batch sizes to plan for before step 1
    std::set<int64_t> eval_sizes;
  };
  // Traces, plans and compiles every step, and makes the states (zero: call Initialize or write them).
  static Result<std::unique_ptr<SessionRunner>> Create(execute::Session& session, const spec::Declared& declared,
                                                       Options options);

  // Gives every state its initial value; the weights those that were set, if any were.
  Status Initialize();
  // One per parameter, of its type.
  void set_initial_weights(std::vector<mesh::Tensor> weights) { initial_weights_ = std::move(weights); }

  Result<train::Scalars> TrainStep(const train::Batch& batch) override;
  Result<train::Scalars> EvalStep(const train::Batch& batch) override;
  Status Save(int64_t step) override;
  int64_t last_saved() const override { return last_saved_; }
  Result<std::string> FirstNonFinite(const train::Batch& batch) override;

  // What Save calls; without one Save does nothing.
  void set_saver(std::function<Status(int64_t step)> saver) { saver_ = std::move(saver); }
  void set_last_saved(int64_t step) { last_saved_ = step; }

  // Weights, then slots.
  const std::vector<nn::Parameter>& states() const { return states_; }
  const train::Programs& programs() const { return programs_; }
  // The training step for full batches, on the user's mesh.
  const plan::Plan& plan() const;
  const mesh::Mesh& mesh() const { return mesh_; }
  // Of every step there is, training first; equal where processes are about to do the same.
  std::vector<uint64_t> plan_hashes() const;

 private:
  struct Steps {
    program::Program program;  // as traced
    std::unique_ptr<execute::LoadedStep> step;
  };
  SessionRunner(execute::Session& session, mesh::Mesh mesh) : session_(session), mesh_(std::move(mesh)) {}
  Result<train::Scalars> Run(std::map<int64_t, Steps>& steps, const train::Batch& batch, const char* what);
  Result<std::vector<program::Variable>> VariablesOf(const program::Program& program) const;

  execute::Session& session_;
  mesh::Mesh mesh_;
  sharding::Given layouts_;
  train::Programs programs_;
  std::vector<nn::Parameter> states_;
  std::map<std::string, program::Variable> by_name_;
  std::map<int64_t, Steps> train_, eval_;
  std::vector<mesh::Tensor> initial_weights_;
  int64_t full_size_ = 0;
  std::function<Status(int64_t)> saver_;
  int64_t last_saved_ = -1;
};

}  // namespace meshtrain::worker
