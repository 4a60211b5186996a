#include <deque>
#include <string>
#include <utility>

#include "runtime/execute/loaded_step.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/mesh_runner.h"

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

namespace {

class MeshEngine final : public Engine {
 public:
  explicit MeshEngine(strategy::Strategy& strategy) : strategy_(strategy) {}

  void Compile(const train::Recipe& recipe) override {
    recipe_ = &recipe;
    if (runner_ != nullptr) {
      for (const nn::Parameter& slot : runner_->programs().slots) strategy_.Retire(slot);
    }
    runner_.reset();
  }

  Status Prepare(const std::vector<TensorType>& types) override {
    if (runner_ == nullptr) {
      MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
      MeshRunner::Options options{.types = types,
                                  .train_sizes = {},
                                  .eval_sizes = {},
                                  .plan_on_demand = true,
                                  .packing = strategy_.packing()};
      options.declare = [this](const std::vector<nn::Parameter>& states) {
        return strategy_.PrepareOnMesh(
            std::vector<program::Variable>(states.begin(), states.end()));
      };
      const auto trace = [this](const std::vector<TensorType>& of) { return Trace(of); };
      MT_ASSIGN_OR_RETURN(
          runner_, MeshRunner::Create(*session, strategy_.mesh(), trace, std::move(options)));
    }
    // A custom loop may have had them since.
    return strategy_.PrepareOnMesh(states());
  }

  Status Begin(std::string_view what, const std::set<int64_t>& training,
               const std::set<int64_t>& evaluation) override {
    std::vector<uint64_t> hashes;
    for (const int64_t size : training) {
      MT_RETURN_IF_ERROR(runner_->PlanTraining(size));
      hashes.push_back(runner_->plan_hash(/*training=*/true, size));
    }
    for (const int64_t size : evaluation) {
      MT_RETURN_IF_ERROR(runner_->PlanEvaluation(size));
      hashes.push_back(runner_->plan_hash(/*training=*/false, size));
    }
    return strategy_.AgreeOnPlans(hashes).At(what);
  }

  Result<train::FitResult> Fit(train::BatchSource& batches, train::FitOptions options,
                               std::span<train::Callback* const> callbacks,
                               std::stop_token stop) override {
    return train::Fit(*runner_, batches, options, callbacks, std::move(stop));
  }

  Result<train::FitResult> FitOwn(const NamedData&, data::Pipeline& here, train::FitOptions options,
                                  std::span<train::Callback* const> callbacks,
                                  std::stop_token stop) override {
    strategy::PipelineBatches batches(here);
    return Fit(batches, options, callbacks, std::move(stop));
  }

  Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                  std::stop_token stop) override {
    return train::Evaluate(*runner_, batches, steps, std::move(stop));
  }

  Result<size_t> AddPrediction(const program::Program& program, const TensorType& x,
                               const std::vector<program::Variable>& variables) override {
    MT_RETURN_IF_ERROR(strategy_.PrepareOnMesh(variables));
    MT_ASSIGN_OR_RETURN(mesh::Layout split,
                        mesh::Layout::BatchSharded(strategy_.mesh(), "batch", x.rank()));
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
    MT_ASSIGN_OR_RETURN(auto step,
                        session->Load(program, strategy_.mesh(), variables,
                                      {.inputs = {{std::string(train::kInputName), split}}}));
    predictions_.push_back({variables, std::move(step)});
    return predictions_.size() - 1;
  }

  Status SendPrediction(size_t prediction, const Tensor& x) override {
    Prediction& p = predictions_[prediction];
    MT_RETURN_IF_ERROR(strategy_.PrepareOnMesh(p.variables));
    MT_RETURN_IF_ERROR(p.step->Feed(0, x));
    MT_RETURN_IF_ERROR(p.step->Run());
    MT_ASSIGN_OR_RETURN(Tensor made, p.step->Fetch(0));
    made_.push_back(std::move(made));
    return OkStatus();
  }

  Result<Tensor> TakePrediction(std::stop_token) override {
    Tensor oldest = std::move(made_.front());
    made_.pop_front();
    return oldest;
  }
  void DropPredictions() override { made_.clear(); }

  int64_t classes() const override { return runner_ ? runner_->programs().classes : 0; }
  std::vector<program::Variable> states() const override {
    if (runner_ == nullptr) return {};
    return {runner_->states().begin(), runner_->states().end()};
  }
  const plan::Plan* plan() const override { return runner_ ? &runner_->plan() : nullptr; }

 private:
  struct Prediction {
    std::vector<program::Variable> variables;
    std::unique_ptr<execute::LoadedStep> step;
  };

  Result<TracedSteps> Trace(const std::vector<TensorType>& types) {
    const strategy::StrategyScope scope(strategy_);
    MT_ASSIGN_OR_RETURN(train::Programs programs,
                        train::BuildPrograms(*recipe_, types[0], types[1]));
    TracedSteps traced{.programs = std::move(programs), .layouts = {}};
    const std::string_view names[] = {train::kInputName, train::kLabelName};
    for (size_t i = 0; i < 2; ++i) {
      MT_ASSIGN_OR_RETURN(mesh::Layout split,
                          mesh::Layout::BatchSharded(strategy_.mesh(), "batch", types[i].rank()));
      traced.layouts.inputs.emplace(names[i], std::move(split));
    }
    return traced;
  }

  strategy::Strategy& strategy_;
  const train::Recipe* recipe_ = nullptr;
  std::unique_ptr<MeshRunner> runner_;
  std::vector<Prediction> predictions_;
  std::deque<Tensor> made_;
};

}  // namespace

std::unique_ptr<Engine> MakeMeshEngine(strategy::Strategy& strategy) {
  return std::make_unique<MeshEngine>(strategy);
}

}  // namespace meshtrain::trainer
