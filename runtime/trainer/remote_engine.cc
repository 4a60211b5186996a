#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/steps.h"
#include "runtime/strategy/remote_variables.h"
#include "runtime/trainer/engine.h"

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

class RemoteEngine final : public Engine {
 public:
  explicit RemoteEngine(strategy::Strategy& strategy)
      : strategy_(strategy),
        variables_(*strategy.remote()),
        coordinator_(variables_.coordinator()) {}

  void Compile(const train::Recipe& recipe) override {
    recipe_ = &recipe;
    training_.reset();
    defined_.clear();
  }

  Status Prepare(const std::vector<TensorType>& types) override {
    types_ = {types[0], types[1]};
    return Define(types_);
  }

  Status Begin(std::string_view what, const std::set<int64_t>& training,
               const std::set<int64_t>& evaluation) override {
    for (const auto* sizes : {&training, &evaluation}) {
      for (const int64_t size : *sizes) MT_RETURN_IF_ERROR(Define(OfSize(size)).At(what));
    }
    return OkStatus();
  }

  Result<train::FitResult> Fit(train::BatchSource& batches, train::FitOptions options,
                               std::span<train::Callback* const> callbacks,
                               std::stop_token stop) override {
    parameter::StepWindow window(coordinator_, training_->step, stop, {});
    const std::stop_source end;
    parameter::SentBatches sent(
        window, batches,
        Sending(window, &parameter::Training::step, options.steps_per_epoch, stop, end));
    return Loop(window, sent, nullptr, options, callbacks, stop, end);
  }

  Result<train::FitResult> FitOwn(const NamedData& data, data::Pipeline& here,
                                  train::FitOptions options,
                                  std::span<train::Callback* const> callbacks,
                                  std::stop_token stop) override {
    auto known = own_.find(data.name);
    if (known == own_.end()) {
      data::PipelineSpec spec = data.spec;
      spec.classes = classes();
      MT_ASSIGN_OR_RETURN(const parameter::PerWorker made,
                          coordinator_.CreatePerWorkerDataset(data.name, std::move(spec)));
      known = own_.emplace(data.name, made).first;
    }
    if (options.steps_per_epoch <= 0) options.steps_per_epoch = here.steps_per_epoch();
    parameter::StepWindow window(coordinator_, training_->step, stop, {});
    const std::stop_source end;
    parameter::RemoteTraining source(
        window,
        {.data = known->second,
         .boundaries = {.first = options.start.step, .steps_per_epoch = options.steps_per_epoch},
         .step = options.start.step,
         .window = variables_.ahead(),
         .batch_size = here.batch_size(),
         .stop = stop,
         .end = end});
    return Loop(window, source, &source, options, callbacks, stop, end);
  }

  Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                  std::stop_token stop) override {
    parameter::StepWindow none(coordinator_, training_->step, stop, {});
    parameter::StepWindow evaluation(coordinator_, training_->evaluate, stop, {});
    parameter::RemoteRunner runner(none, evaluation);
    const std::stop_source end;
    parameter::SentBatches sent(
        evaluation, batches, Sending(evaluation, &parameter::Training::evaluate, steps, stop, end));
    auto result = train::Evaluate(runner, sent, steps, end.get_token());
    evaluation.Drain();
    return result;
  }

  Result<size_t> AddPrediction(const program::Program& program, const TensorType&,
                               const std::vector<program::Variable>& variables) override {
    MT_RETURN_IF_ERROR(variables_.Begin(variables));
    MT_ASSIGN_OR_RETURN(parameter::Function function, coordinator_.DefineFunction(program));
    predictions_.push_back(std::move(function));
    return predictions_.size() - 1;
  }

  Status SendPrediction(size_t prediction, const Tensor& x) override {
    MT_ASSIGN_OR_RETURN(parameter::RemoteValue sent,
                        coordinator_.Schedule(predictions_[prediction], {x}));
    sent_.push_back(std::move(sent));
    return OkStatus();
  }

  Result<Tensor> TakePrediction(std::stop_token stop) override {
    const parameter::RemoteValue oldest = std::move(sent_.front());
    sent_.pop_front();
    auto outputs = coordinator_.Fetch(oldest, std::move(stop));
    if (outputs.ok()) return std::move(outputs->front().second);
    DropPredictions();
    return outputs.status();
  }

  void DropPredictions() override {
    sent_.clear();
    // Steps that fail are told of once, by whoever asks first.
    static_cast<void>(coordinator_.Join().ok());
  }

  int64_t ahead() const override { return variables_.ahead(); }

  int64_t classes() const override { return training_ ? training_->classes : 0; }
  // Slots are the servers'.
  std::vector<program::Variable> states() const override {
    if (!training_) return {};
    const std::vector<nn::Parameter>& weights = recipe_->model->parameters();
    return {weights.begin(), weights.end()};
  }
  const plan::Plan* plan() const override { return nullptr; }

 private:
  parameter::BatchTypes OfSize(int64_t size) const {
    parameter::BatchTypes types = types_;
    types.first.dims[0] = types.second.dims[0] = size;
    return types;
  }

  // `took`: told of each step that was taken; null: nobody.
  Result<train::FitResult> Loop(parameter::StepWindow& training, train::BatchSource& source,
                                parameter::RemoteTraining* took, train::FitOptions options,
                                std::span<train::Callback* const> callbacks,
                                const std::stop_token& stop, const std::stop_source& end) {
    if (options.end_after_bad_steps != 1) {
      return InvalidArgument(
          "fit: end_after_bad_steps: expected 1 with parameter servers, where a bad step ends the "
          "steps that are under way, got: " +
          std::to_string(options.end_after_bad_steps));
    }
    parameter::StepWindow evaluation(coordinator_, training_->evaluate, stop, {});
    parameter::RemoteRunner runner(training, evaluation);
    runner.set_source(took);
    std::optional<parameter::SentBatches> validation;
    if (options.validation != nullptr) {
      validation.emplace(
          evaluation, *options.validation,
          Sending(evaluation, &parameter::Training::evaluate, options.validation_steps, stop, end));
      options.validation = &*validation;
    }
    auto result = train::Fit(runner, source, options, callbacks, end.get_token());
    // A callback, or a loss, may have ended it with steps under way.
    const int64_t more = training.Drain();
    evaluation.Drain();
    if (result.ok()) result->position.step += more;
    return result;
  }

  // The steps for batches of these types, where there are none yet.
  Status Define(const parameter::BatchTypes& types) {
    if (std::find(defined_.begin(), defined_.end(), types) != defined_.end()) return OkStatus();
    const strategy::StrategyScope scope(strategy_);
    if (training_) {
      MT_RETURN_IF_ERROR(coordinator_.AddBatches(*training_, *recipe_, {&types, 1}));
    } else {
      MT_ASSIGN_OR_RETURN(training_, coordinator_.DefineTraining(*recipe_, {&types, 1}));
      // Its slots may have names that the last one's have.
      const bool another = optimizer_ != recipe_->optimizer;
      optimizer_ = recipe_->optimizer;
      MT_RETURN_IF_ERROR(variables_.GiveNew(another ? std::span(optimizer_->slots())
                                                    : std::span<const nn::Parameter>()));
    }
    defined_.push_back(types);
    return OkStatus();
  }

  parameter::SentBatches::Options Sending(parameter::StepWindow& window,
                                          parameter::Function parameter::Training::*function,
                                          int64_t steps, std::stop_token stop,
                                          const std::stop_source& end) {
    const auto define = [this, &window, function](const train::Batch& batch) -> Status {
      MT_RETURN_IF_ERROR(Define({batch.components[0].type(), batch.components[1].type()}));
      window.set_function((*training_).*function);  // with what was added
      return OkStatus();
    };
    return {.steps = steps,
            .ahead = variables_.ahead(),
            .stop = std::move(stop),
            .end = end,
            .before = define};
  }

  strategy::Strategy& strategy_;
  strategy::RemoteVariables& variables_;
  parameter::Coordinator& coordinator_;
  const train::Recipe* recipe_ = nullptr;
  std::shared_ptr<train::Optimizer> optimizer_;  // whose slots the servers hold
  parameter::BatchTypes types_;                  // of a full batch
  std::optional<parameter::Training> training_;
  std::vector<parameter::BatchTypes> defined_;
  std::map<std::string, parameter::PerWorker> own_;  // NamedData, by name
  std::vector<parameter::Function> predictions_;
  std::deque<parameter::RemoteValue> sent_;
};

std::unique_ptr<Engine> MakeRemoteEngine(strategy::Strategy& strategy) {
  return std::make_unique<RemoteEngine>(strategy);
}

}  // namespace meshtrain::trainer
