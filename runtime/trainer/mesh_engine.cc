#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/membership/team.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/mesh_runner.h"
#include "runtime/trainer/stop_vote.h"
#include "runtime/trainer/team_batches.h"

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

namespace {

class MeshEngine final : public Engine {
 public:
  MeshEngine(strategy::MeshStrategy& strategy, MeshEngineOptions options)
      : strategy_(strategy), options_(options) {}

  void Compile(const train::Recipe& recipe, MeshRunner::Trace trace) override {
    recipe_ = &recipe;
    trace_ = std::move(trace);
    if (runner_ != nullptr) {
      for (const nn::Parameter& slot : runner_->programs().slots) strategy_.Retire(slot);
    }
    runner_.reset();
  }

  Status Prepare(const std::vector<TensorType>& types) override {
    if (runner_ == nullptr) {
      MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
      const auto declare = [this](const std::vector<nn::Parameter>& states,
                                  const sharding::Given& layouts) {
        if (options_.declare_only) return strategy_.DeclareOnMesh(states, layouts.states);
        return strategy_.PutOnMesh(std::vector<program::Variable>(states.begin(), states.end()),
                                   layouts.states);
      };
      const auto trace = [this](const std::vector<TensorType>& of) {
        return trace_ ? trace_(of) : Trace(of);
      };
      MT_ASSIGN_OR_RETURN(
          runner_,
          MeshRunner::Create(*session, strategy_.mesh(), trace,
                             {.types = types, .packing = strategy_.packing(), .declare = declare}));
    }
    // A custom loop may have had them since.
    return strategy_.PutOnMesh(states());
  }

  Status Plan(std::string_view what, const std::set<int64_t>& training,
              const std::set<int64_t>& evaluation) override {
    hashes_.clear();
    what_ = what;
    for (const int64_t size : training) {
      MT_RETURN_IF_ERROR(runner_->PlanTraining(size));
      hashes_.push_back(runner_->plan_hash(/*training=*/true, size));
    }
    for (const int64_t size : evaluation) {
      MT_RETURN_IF_ERROR(runner_->PlanEvaluation(size));
      hashes_.push_back(runner_->plan_hash(/*training=*/false, size));
    }
    return OkStatus();
  }

  Status Agree(std::initializer_list<const data::Pipeline*> data, std::stop_token stop) override {
    membership::Team* const team = strategy_.team();
    if (team == nullptr || team->processes() == 1) return OkStatus();
    std::vector<uint64_t> orders;
    for (const data::Pipeline* pipeline : data) {
      if (pipeline != nullptr) orders.push_back(pipeline->cursor().fingerprint);
    }
    Status agreed = team->AgreeOnPlans(hashes_, stop);
    if (agreed.ok()) agreed = team->AgreeOnData(orders, std::move(stop));
    return what_.empty() ? agreed : agreed.At(what_);
  }

  Status BeginAnew(std::span<const Tensor> given) override {
    MT_RETURN_IF_ERROR(runner_->Initialize());
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
    for (size_t i = 0; i < given.size(); ++i) {
      MT_RETURN_IF_ERROR(session->Write(runner_->programs().parameters[i], given[i]));
    }
    return OkStatus();
  }

  Status Give(std::map<std::string, Tensor>& values) override {
    return GiveTo(strategy_, states(), values);
  }

  Result<train::FitResult> Fit(FitWork work, std::stop_token stop) override {
    std::optional<strategy::PipelineBatches> here;
    if (work.own != nullptr) work.batches = &here.emplace(*work.here);
    membership::Team* const team = strategy_.team();
    std::optional<TeamBatches> together, validation;
    if (team != nullptr) {
      work.batches = &together.emplace(*work.batches, *team);
      if (train::BatchSource*& held_out = work.options.validation; held_out != nullptr) {
        held_out = &validation.emplace(*held_out, *team);
      }
    }
    train::FunctionCallback times;
    times.on_step_end = [&](const train::StepInfo& info) {
      const Duration own = info.seconds - runner_->waited();
      own_seconds_ = std::chrono::duration<double>(own).count();
      if (team != nullptr) team->ReportStepTime(own);
      return OkStatus();
    };
    work.callbacks.insert(work.callbacks.begin(), &times);
    std::optional<train::CheckpointEvery> save;
    if (work.saves) {
      runner_->set_saver(work.saves->save);
      runner_->set_last_saved(work.saves->last_saved);
      save.emplace(*runner_, work.saves->times);
    }
    // Many processes stop by their vote only: one that stopped by itself would leave the others
    // waiting in a collective.
    const std::stop_source all;
    std::optional<StopVote> vote;
    if (team != nullptr) {
      work.callbacks.push_back(
          &vote.emplace(*team, stop, all, [&save] { return save && save->Overdue(); }));
    }
    if (save) {
      if (vote) save->set_due([&vote] { return vote->saves(); });
      work.callbacks.push_back(&*save);
    }
    auto result = train::Fit(*runner_, *work.batches, work.options, work.callbacks,
                             team != nullptr ? all.get_token() : stop);
    runner_->set_saver(nullptr);
    stopped_by_another_ = all.stop_requested() && !stop.stop_requested();
    return result;
  }
  bool stopped_by_another() const override { return stopped_by_another_; }

  Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                  std::stop_token stop) override {
    membership::Team* const team = strategy_.team();
    if (team == nullptr) return train::Evaluate(*runner_, batches, steps, std::move(stop));
    TeamBatches together(batches, *team);
    return train::Evaluate(*runner_, together, steps, std::move(stop));
  }

  Result<size_t> AddPrediction(const train::Prediction& prediction, bool whole) override {
    // What it keeps is the session's alone: nothing to be saved, or to be used elsewhere.
    std::vector<program::Variable> shared;
    for (const program::Variable& v : prediction.variables) {
      if (std::find(prediction.kept.begin(), prediction.kept.end(), v) == prediction.kept.end()) {
        shared.push_back(v);
      }
    }
    MT_RETURN_IF_ERROR(strategy_.PutOnMesh(shared));
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
    for (const program::Variable& v : prediction.kept) {
      MT_RETURN_IF_ERROR(
          session->Declare(v, mesh::Layout::Replicated(strategy_.mesh(), v.type().rank())));
    }
    sharding::Given split;
    for (const program::Port& input : prediction.program.inputs) {
      const TensorType& type = prediction.program.type(input.value);
      if (whole) {
        split.inputs[input.name] = mesh::Layout::Replicated(strategy_.mesh(), type.rank());
      } else {
        MT_ASSIGN_OR_RETURN(split.inputs[input.name], BatchLayout(type));
      }
    }
    MT_ASSIGN_OR_RETURN(auto step, session->Load(prediction.program, strategy_.mesh(),
                                                 prediction.variables, std::move(split)));
    predictions_.emplace(next_prediction_, Prediction{std::move(shared), std::move(step),
                                                      prediction.program.outputs.size()});
    return next_prediction_++;
  }
  bool RemovePrediction(size_t prediction) override { return predictions_.erase(prediction) > 0; }
  bool keeps() const override { return true; }

  Status SendPrediction(size_t prediction, std::span<const Tensor> inputs) override {
    Prediction& p = predictions_.at(prediction);
    MT_RETURN_IF_ERROR(strategy_.PutOnMesh(p.shared));
    for (size_t i = 0; i < inputs.size(); ++i) MT_RETURN_IF_ERROR(p.step->Feed(i, inputs[i]));
    MT_RETURN_IF_ERROR(p.step->Run());
    std::vector<Tensor> made;
    for (size_t i = 0; i < p.outputs; ++i) {
      MT_ASSIGN_OR_RETURN(made.emplace_back(), p.step->Fetch(i));
    }
    made_.push_back(std::move(made));
    return OkStatus();
  }

  Result<std::vector<Tensor>> TakePrediction(std::stop_token) override {
    std::vector<Tensor> oldest = std::move(made_.front());
    made_.pop_front();
    return oldest;
  }
  void DropPredictions() override { made_.clear(); }

  std::pair<int64_t, int64_t> UsedOf(int64_t size) const override {
    return runner_ ? runner_->UsedOf(size) : std::pair<int64_t, int64_t>(0, size);
  }

  std::map<std::string, int64_t> classes() const override {
    return runner_ ? runner_->programs().classes : std::map<std::string, int64_t>();
  }
  std::map<std::string, int64_t> rows() const override {
    return runner_ ? runner_->programs().rows : std::map<std::string, int64_t>();
  }
  std::vector<program::Variable> states() const override {
    if (runner_ == nullptr) return {};
    return {runner_->states().begin(), runner_->states().end()};
  }
  const train::Programs* programs() const override {
    return runner_ ? &runner_->programs() : nullptr;
  }
  const plan::Plan* plan() const override { return runner_ ? &runner_->plan() : nullptr; }
  int64_t scratch_bytes() const override { return runner_ ? runner_->scratch_bytes() : 0; }

  std::vector<double> RankStepSeconds() const override {
    const membership::Team* const team = strategy_.team();
    if (team == nullptr) {
      return own_seconds_ > 0 ? std::vector{own_seconds_.load()} : std::vector<double>();
    }
    std::vector<double> seconds = team->StepSeconds();
    for (double& s : seconds) s = s > 0 ? s : std::numeric_limits<double>::quiet_NaN();
    return seconds;
  }
  int64_t CollectiveBytesSent() const override {
    return runner_ ? runner_->CollectiveBytesSent() : 0;
  }

  Duration CollectiveTime() const override { return runner_ ? runner_->waited() : Duration{}; }

 private:
  struct Prediction {
    std::vector<program::Variable> shared;  // with training
    std::unique_ptr<execute::LoadedStep> step;
    size_t outputs;
  };

  // Split over the batch axis, where there is one.
  Result<mesh::Layout> BatchLayout(const TensorType& type) const {
    if (strategy_.batch_axis().empty()) {
      return mesh::Layout::Replicated(strategy_.mesh(), type.rank());
    }
    return mesh::Layout::BatchSharded(strategy_.mesh(), strategy_.batch_axis(), type.rank());
  }

  Result<TracedSteps> Trace(const std::vector<TensorType>& types) {
    const strategy::StrategyScope scope(strategy_);
    MT_ASSIGN_OR_RETURN(train::Programs programs, train::BuildPrograms(*recipe_, types));
    TracedSteps traced{.programs = std::move(programs), .layouts = {}};
    for (size_t i = 0; i < types.size(); ++i) {
      MT_ASSIGN_OR_RETURN(mesh::Layout split, BatchLayout(types[i]));
      traced.layouts.inputs.emplace(recipe_->components[i], std::move(split));
    }
    return traced;
  }

  strategy::MeshStrategy& strategy_;
  const MeshEngineOptions options_;
  const train::Recipe* recipe_ = nullptr;
  MeshRunner::Trace trace_;  // null: Trace
  std::unique_ptr<MeshRunner> runner_;
  std::map<size_t, Prediction> predictions_;
  size_t next_prediction_ = 0;
  std::deque<std::vector<Tensor>> made_;
  std::string what_;              // of the last Plan
  std::vector<uint64_t> hashes_;  // that it planned
  bool stopped_by_another_ = false;
  std::atomic<double> own_seconds_ = 0;  // of the last step, without waiting for others; 0: none
};

}  // namespace

std::unique_ptr<Engine> MakeMeshEngine(strategy::MeshStrategy& strategy,
                                       MeshEngineOptions options) {
  return std::make_unique<MeshEngine>(strategy, options);
}

}  // namespace meshtrain::trainer
