#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/parameter/chief/steps.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/server_strategy.h"
#include "runtime/strategy/variables.h"
#include "runtime/train/callbacks.h"
#include "runtime/trainer/engine.h"

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

namespace {

class ServerEngine final : public Engine {
 public:
  ServerEngine(strategy::ServerStrategy& strategy, ServerEngineOptions options)
      : strategy_(strategy),
        coordinator_(strategy.coordinator()),
        options_(std::move(options)),
        evaluations_ahead_(2 * int64_t{coordinator_.num_workers()}) {}

  // Whole batches go to the workers: layouts have no say.
  void Compile(const train::Recipe& recipe, MeshRunner::Trace) override {
    recipe_ = &recipe;
    training_.reset();
    defined_.clear();
  }

  Status Prepare(const std::vector<TensorType>& types) override {
    types_ = types;
    return Define(types_);
  }

  Status Plan(std::string_view what, const std::set<int64_t>& training,
              const std::set<int64_t>& evaluation) override {
    for (const auto* sizes : {&training, &evaluation}) {
      for (const int64_t size : *sizes) MT_RETURN_IF_ERROR(Define(OfSize(size)).At(what));
    }
    return OkStatus();
  }
  // A worker compares its data with ours as it gets the dataset.
  Status Agree(std::initializer_list<const data::Pipeline*>, std::stop_token) override {
    return OkStatus();
  }

  // A term of the servers begins with the first values.
  Status BeginAnew(std::span<const Tensor> given) override {
    for (size_t i = 0; i < given.size(); ++i) {
      MT_RETURN_IF_ERROR(coordinator_.Write(training_->parameters[i], given[i]));
    }
    return OkStatus();
  }

  Status Give(std::map<std::string, Tensor>& values) override {
    std::vector<std::string> taken;
    for (const auto& [name, parts] : coordinator_.planner().states()) {
      const auto value = values.find(name);
      if (value == values.end() || !Uses(name, parts.front().state.name)) continue;
      MT_RETURN_IF_ERROR(
          strategy::CheckTypeOf(name, parts.front().state.global_type, value->second.type()));
      taken.push_back(name);
    }
    for (const std::string& name : taken) {
      MT_RETURN_IF_ERROR(coordinator_.Write(name, values.at(name)));
      values.erase(name);
    }
    return OkStatus();
  }

  Result<train::FitResult> Fit(FitWork work, std::stop_token stop) override {
    train::LoopOptions& options = work.options;
    if (options.end_after_bad_steps != 1) {
      return InvalidArgument(
          "fit: end_after_bad_steps: expected 1 with parameter servers, where a bad step ends the "
          "steps that are under way, got: " +
          std::to_string(options.end_after_bad_steps));
    }
    parameter::StepWindow training = Window(&parameter::Training::step, stop);
    parameter::StepWindow evaluation = Window(&parameter::Training::evaluate, stop);
    parameter::RemoteRunner runner(training, evaluation);
    runner.set_summed(training_->summed);
    std::optional<train::CheckpointEvery> save;
    if (work.saves) {
      runner.set_saver(work.saves->save);
      runner.set_last_saved(work.saves->last_saved);
      save.emplace(runner, work.saves->times);
      // A save sees the work of whole steps: those that are under way come to their end first.
      save->set_due([&] { return save->Overdue() && training.size() == 0; });
      work.callbacks.push_back(&*save);
    }
    const std::stop_source end;
    std::optional<parameter::SentBatches> sent;
    std::optional<parameter::RemoteTraining> own;
    train::BatchSource* source = nullptr;
    if (work.own == nullptr) {
      source = &sent.emplace(training, *work.batches,
                             Sending(training, &parameter::Training::step, options.steps_per_epoch,
                                     strategy_.ahead(), stop, end));
    } else {
      MT_RETURN_IF_ERROR(train::CheckEnds(strategy::PipelineBatches(*work.here),
                                          options.steps_per_epoch, "fit: steps_per_epoch"));
      if (options.steps_per_epoch <= 0) options.steps_per_epoch = work.here->steps_per_epoch();
      MT_ASSIGN_OR_RETURN(const parameter::PerWorker data,
                          OwnData(*work.own, work.here->examples()));
      const train::Position& start = options.start;
      parameter::RemoteTraining::Options how{
          .data = data,
          .boundaries = {.first = start.step - start.batch,
                         .steps_per_epoch = options.steps_per_epoch},
          .step = start.step,
          .window = strategy_.ahead(),
          .batch_size = work.here->batch_size(),
          .stop = stop,
          .end = end};
      if (save) {
        how.boundaries.save_every = work.saves->times.every_steps;
        how.hold = [&save] { return save->Overdue(); };
      }
      source = &own.emplace(training, std::move(how));
      runner.set_source(&*own);
    }
    std::optional<parameter::SentBatches> validation;
    if (options.validation != nullptr) {
      options.validation =
          &validation.emplace(evaluation, *options.validation,
                              Sending(evaluation, &parameter::Training::evaluate,
                                      options.validation_steps, evaluations_ahead_, stop, end));
    }
    auto result = train::Fit(runner, *source, options, work.callbacks, end.get_token());
    // What was saved at the end has no part of steps that come after it.
    if (save) return result;
    // A callback, or a loss, may have ended it with steps under way.
    const int64_t more = training.Drain();
    evaluation.Drain();
    if (result.ok()) result->position.step += more;
    return result;
  }

  Result<train::Scalars> Evaluate(train::BatchSource& batches, int64_t steps,
                                  std::stop_token stop) override {
    parameter::StepWindow none = Window(&parameter::Training::step, stop);
    parameter::StepWindow evaluation = Window(&parameter::Training::evaluate, stop);
    parameter::RemoteRunner runner(none, evaluation);
    runner.set_summed(training_->summed);
    const std::stop_source end;
    parameter::SentBatches sent(
        evaluation, batches,
        Sending(evaluation, &parameter::Training::evaluate, steps, evaluations_ahead_, stop, end));
    auto result = train::Evaluate(runner, sent, steps, end.get_token());
    evaluation.Drain();
    return result;
  }

  Result<size_t> AddPrediction(const train::Prediction& prediction,
                               bool /*whole: a worker splits what its devices divide*/) override {
    MT_CHECK(prediction.kept.empty());  // one step runs on any worker
    MT_RETURN_IF_ERROR(strategy_.PutOnServers(prediction.variables));
    MT_ASSIGN_OR_RETURN(parameter::Function function,
                        coordinator_.DefineFunction(prediction.program));
    Prediction& made = predictions_.emplace_back(Prediction{std::move(function), {}});
    for (const program::Port& output : prediction.program.outputs) {
      made.outputs.push_back(output.name);
    }
    return predictions_.size() - 1;
  }
  bool RemovePrediction(size_t /*prediction*/) override { return false; }

  Status SendPrediction(size_t prediction, std::span<const Tensor> inputs) override {
    const std::vector<parameter::Arg> arguments(inputs.begin(), inputs.end());
    MT_ASSIGN_OR_RETURN(parameter::RemoteValue sent,
                        coordinator_.Schedule(predictions_[prediction].function, arguments));
    sent_.emplace_back(prediction, std::move(sent));
    return OkStatus();
  }

  Result<std::vector<Tensor>> TakePrediction(std::stop_token stop) override {
    const auto [prediction, oldest] = std::move(sent_.front());
    sent_.pop_front();
    auto outputs = coordinator_.Fetch(oldest, std::move(stop));
    if (!outputs.ok()) {
      DropPredictions();
      return outputs.status();
    }
    std::vector<Tensor> made;
    for (const std::string& name : predictions_[prediction].outputs) {
      const auto output = std::find_if(outputs->begin(), outputs->end(),
                                       [&](const auto& of) { return of.first == name; });
      MT_CHECK(output != outputs->end());
      made.push_back(std::move(output->second));
    }
    return made;
  }

  void DropPredictions() override {
    sent_.clear();
    // Steps that fail are told of once, by whoever asks first.
    static_cast<void>(coordinator_.Join().ok());
  }

  int64_t ahead() const override { return strategy_.ahead(); }

  std::map<std::string, int64_t> classes() const override {
    return training_ ? training_->classes : std::map<std::string, int64_t>();
  }
  std::map<std::string, int64_t> rows() const override {
    return training_ ? training_->rows : std::map<std::string, int64_t>();
  }
  // Slots are the servers'.
  std::vector<program::Variable> states() const override {
    if (!training_) return {};
    const std::vector<nn::Parameter>& weights = recipe_->model->parameters();
    return {weights.begin(), weights.end()};
  }

 private:
  struct Prediction {
    parameter::Function function;
    std::vector<std::string> outputs;
  };

  parameter::BatchTypes OfSize(int64_t size) const {
    parameter::BatchTypes types = types_;
    for (TensorType& type : types) type.dims[0] = size;
    return types;
  }

  parameter::StepWindow Window(parameter::Function parameter::Training::*function,
                               std::stop_token stop) {
    return {coordinator_, (*training_).*function, std::move(stop), options_.end_steps};
  }

  // `examples`: that it has here.
  Result<parameter::PerWorker> OwnData(const NamedData& data, int64_t examples) {
    const auto known = own_.find(data.name);
    if (known != own_.end()) return known->second;
    data::PipelineSpec spec = data.spec;
    spec.classes = classes();
    spec.rows = rows();
    MT_ASSIGN_OR_RETURN(const parameter::PerWorker made,
                        coordinator_.CreatePerWorkerDataset(
                            data.name, std::move(spec), parameter::ShardPolicy::kWhole, examples));
    return own_.emplace(data.name, made).first->second;
  }

  // Whether the steps use the servers' state `name`, whose first part's name is `part`.
  bool Uses(const std::string& name, const std::string& part) const {
    const auto named = [](const auto& parameters, const std::string& wanted) {
      return std::any_of(parameters.begin(), parameters.end(),
                         [&](const nn::Parameter& p) { return p.name() == wanted; });
    };
    return named(recipe_->model->parameters(), name) || named(recipe_->optimizer->slots(), part);
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
      MT_RETURN_IF_ERROR(strategy_.GiveNew(another ? std::span(optimizer_->slots())
                                                   : std::span<const nn::Parameter>()));
    }
    defined_.push_back(types);
    return OkStatus();
  }

  parameter::SentBatches::Options Sending(parameter::StepWindow& window,
                                          parameter::Function parameter::Training::*function,
                                          int64_t steps, int64_t ahead, std::stop_token stop,
                                          const std::stop_source& end) {
    const auto define = [this, &window, function](const train::Batch& batch) -> Status {
      parameter::BatchTypes types;
      for (const Tensor& component : batch.components) types.push_back(component.type());
      MT_RETURN_IF_ERROR(Define(types));
      window.set_function((*training_).*function);  // with what was added
      return OkStatus();
    };
    return {.steps = steps, .ahead = ahead, .stop = std::move(stop), .end = end, .before = define};
  }

  strategy::ServerStrategy& strategy_;
  parameter::Coordinator& coordinator_;
  const ServerEngineOptions options_;
  const int64_t evaluations_ahead_;  // they change nothing, so that every worker may have some
  const train::Recipe* recipe_ = nullptr;
  std::shared_ptr<train::Optimizer> optimizer_;  // whose slots the servers hold
  parameter::BatchTypes types_;                  // of a full batch
  std::optional<parameter::Training> training_;
  std::vector<parameter::BatchTypes> defined_;
  std::map<std::string, parameter::PerWorker> own_;  // NamedData, by name
  std::vector<Prediction> predictions_;
  std::deque<std::pair<size_t, parameter::RemoteValue>> sent_;  // of which prediction
};

}  // namespace

std::unique_ptr<Engine> MakeServerEngine(strategy::ServerStrategy& strategy,
                                         ServerEngineOptions options) {
  return std::make_unique<ServerEngine>(strategy, std::move(options));
}

std::unique_ptr<Engine> MakeEngine(strategy::Strategy& strategy) {
  if (auto* servers = dynamic_cast<strategy::ServerStrategy*>(&strategy)) {
    return MakeServerEngine(*servers);
  }
  auto* mesh = dynamic_cast<strategy::MeshStrategy*>(&strategy);
  MT_CHECK(mesh != nullptr);
  return MakeMeshEngine(*mesh);
}

}  // namespace meshtrain::trainer
