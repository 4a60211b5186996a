#include "runtime/trainer/model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/data/labels.h"
#include "runtime/program/ops.h"
#include "runtime/saving/newest.h"
#include "runtime/strategy/dataset.h"
#include "runtime/strategy/variables.h"
#include "runtime/train/prediction.h"
#include "runtime/train/programs.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/predict.h"

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

namespace {

// Collects what Keras' progress bar shows of each epoch, of the steps that had figures. First of
// the callbacks: keeps `step` where training is, for those that ask the model.
class KerasBar final : public train::Callback {
 public:
  explicit KerasBar(int64_t& step) : step_(step) {}
  Status OnStepEnd(const train::StepInfo& info) override {
    step_ = info.position.step;
    for (const auto& [name, running] : info.position.figures.Means()) {
      sums_[name] += running;
      running_[name] = running;
    }
    ++steps_;
    return OkStatus();
  }
  Status OnBadStep(const train::BadStepInfo& info) override {
    step_ = info.position.step;
    return OkStatus();
  }
  Status OnEpochEnd(const train::EpochInfo& info, const train::Position&) override {
    train::Scalars& shown = epochs.emplace_back();
    for (const auto& [name, mean] : info.train) {
      const double sum = sums_[name] + running_[name];
      shown.emplace_back(name, steps_ == 0 ? mean : sum / static_cast<double>(steps_ + 1));
    }
    sums_.clear();
    running_.clear();
    steps_ = 0;
    return OkStatus();
  }
  std::vector<train::Scalars> epochs;

 private:
  int64_t& step_;
  // Of this epoch.
  std::map<std::string, double> sums_, running_;
  int64_t steps_ = 0;
};

Status CheckComponents(const std::vector<std::string>& want, const std::vector<std::string>& got) {
  if (want == got) return OkStatus();
  return InvalidArgument("model: expected data of " + Join(want, ", ") +
                         ", got: " + Join(got, ", "));
}

std::vector<program::Variable> WeightsOf(const nn::Layer* layer) {
  if (layer == nullptr) return {};
  return {layer->parameters().begin(), layer->parameters().end()};
}

// Of a pass's batches.
std::set<int64_t> SizesOf(const data::Pipeline& data) {
  return {data.batch_size(), data.last_batch_size()};
}

// The numbers of a batch's examples within it: those that errors name where there is no file.
std::vector<int64_t> ExamplesOf(const Tensor& component) {
  std::vector<int64_t> examples(static_cast<size_t>(component.dims()[0]));
  std::iota(examples.begin(), examples.end(), int64_t{0});
  return examples;
}

// Batches from anywhere, whose labels and ids are looked at as a pipeline's are.
class CheckedBatches final : public train::BatchSource {
 public:
  // `classes`, `rows`: train::Programs'.
  CheckedBatches(train::BatchSource& source, std::map<std::string, int64_t> classes,
                 std::map<std::string, int64_t> rows)
      : source_(source), classes_(std::move(classes)), rows_(std::move(rows)) {}
  Status Begin() override { return source_.Begin(); }
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override {
    MT_ASSIGN_OR_RETURN(std::optional<train::Batch> batch, source_.Next(std::move(stop)));
    const std::string file = "batch " + std::to_string(given_);
    const std::vector<std::string> names = source_.component_names();
    for (size_t i = 0; batch && i < std::min(names.size(), batch->components.size()); ++i) {
      const Tensor& component = batch->components[i];
      if (component.type().rank() == 0) continue;
      const std::vector<int64_t> examples = ExamplesOf(component);
      if (const auto classes = classes_.find(names[i]); classes != classes_.end()) {
        MT_RETURN_IF_ERROR(data::CheckClasses(component, classes->second, examples, file));
      }
      if (const auto rows = rows_.find(names[i]); rows != rows_.end()) {
        MT_RETURN_IF_ERROR(data::CheckIds(component, rows->second, examples, file));
      }
    }
    ++given_;
    return batch;
  }
  Status CheckFinite() override { return source_.CheckFinite(); }
  int64_t steps_per_epoch() const override { return source_.steps_per_epoch(); }
  bool endless() const override { return source_.endless(); }

 private:
  train::BatchSource& source_;
  const std::map<std::string, int64_t> classes_, rows_;
  int64_t given_ = 0;
};

}  // namespace

Status GiveTo(strategy::Strategy& strategy, std::span<const program::Variable> variables,
              std::map<std::string, Tensor>& values) {
  for (const program::Variable& v : variables) {
    const auto value = values.find(v.name());
    if (value == values.end()) continue;
    MT_RETURN_IF_ERROR(strategy::CheckTypeOf(v.name(), v.type(), value->second.type()));
  }
  for (const program::Variable& v : variables) {
    const auto value = values.find(v.name());
    if (value == values.end()) continue;
    MT_RETURN_IF_ERROR(strategy.Assign(v, value->second));
    values.erase(value);
  }
  return OkStatus();
}

std::vector<double> History::Of(const std::string& name) const {
  std::vector<double> values;
  for (const train::EpochInfo& e : epochs) {
    const bool validation = name.starts_with("val_");
    const auto value =
        train::FindScalar(validation ? e.validation : e.train, validation ? name.substr(4) : name);
    if (value) values.push_back(*value);
  }
  return values;
}

Model::Model(std::shared_ptr<nn::Layer> layer, strategy::Strategy& strategy)
    : layer_(std::move(layer)), strategy_(strategy), engine_(MakeEngine(strategy)) {}
Model::~Model() = default;

Status Model::Compile(CompileOptions options) {
  if (layer_ == nullptr) return InvalidArgument("compile: expected a model, got: none");
  if (options.optimizer == nullptr) {
    return InvalidArgument("compile: expected an optimizer, got: none");
  }
  std::vector<train::Head> heads = std::move(options.heads);
  if (heads.empty()) {
    heads.push_back({.labels = std::move(options.labels),
                     .loss = std::move(options.loss),
                     .metrics = std::move(options.metrics)});
  } else if (options.loss.function != nullptr || !options.metrics.empty() ||
             options.labels != train::kLabelName) {
    return InvalidArgument(
        "compile: expected either heads, with the loss, metrics and labels of each output, or "
        "`loss`, `metrics` and `labels` of a model of one, got: both");
  }
  const strategy::StrategyScope scope(strategy_);
  const auto* mesh = dynamic_cast<const strategy::MeshStrategy*>(&strategy_);
  auto recipe = std::make_unique<train::Recipe>(
      train::Recipe{.inputs = std::move(options.inputs),
                    .model = layer_,
                    .heads = std::move(heads),
                    .optimizer = std::move(options.optimizer),
                    .layouts = mesh == nullptr ? nn::LayoutMap() : mesh->layouts(),
                    .seed = options.seed,
                    .accumulate = options.accumulate,
                    .compute = options.compute,
                    .narrow_sums = options.narrow_sums,
                    .loss_scale = options.loss_scale,
                    .recompute = std::move(options.recompute)});
  engine_->Compile(*recipe);
  recipe_ = std::move(recipe);
  prepared_ = false;
  return OkStatus();
}

Status Model::Prepare(const std::vector<TensorType>& types, const std::vector<std::string>& names) {
  if (recipe_ == nullptr) {
    return FailedPrecondition("model: expected Compile before Fit and Evaluate");
  }
  if (prepared_) {
    MT_RETURN_IF_ERROR(CheckComponents(recipe_->components, names));
  } else {
    recipe_->components = names;
  }
  MT_RETURN_IF_ERROR(engine_->Prepare(types));
  if (!restored_.empty()) {
    MT_RETURN_IF_ERROR(engine_->Give(restored_));
    restored_.clear();  // every weight and slot is made
  }
  prepared_ = true;
  return OkStatus();
}

Status Model::Prepare(const data::Pipeline& data) {
  return Prepare(data.BatchTypes(data.batch_size()), data.component_names());
}

Result<History> Model::Fit(data::Pipeline& data, FitOptions options) {
  if (options.validation == &data) {
    return InvalidArgument(
        "fit: validation: expected a pipeline of its own, got: the one that is trained with, whose "
        "place each validation would move");
  }
  MT_RETURN_IF_ERROR(Prepare(data));
  Expect(*engine_, data);
  MT_RETURN_IF_ERROR(strategy::BeginPass(data));
  strategy::PipelineBatches batches(data);
  return FitOn({.batches = &batches, .here = &data}, SizesOf(data), options);
}

Result<History> Model::Fit(train::BatchSource& batches, const std::vector<TensorType>& types,
                           FitOptions options) {
  MT_RETURN_IF_ERROR(Prepare(types, batches.component_names()));
  CheckedBatches checked(batches, engine_->classes(), engine_->rows());
  return FitOn({.batches = &checked}, {types[0].dims[0]}, options);
}

const plan::Plan* Model::plan() const { return engine_->plan(); }

Result<History> Model::Fit(const NamedData& data, FitOptions options) {
  std::unique_ptr<data::Pipeline>& here = data_[data.name];
  if (here == nullptr) {
    MT_ASSIGN_OR_RETURN(here, data::Pipeline::Create(data.spec));
  }
  MT_RETURN_IF_ERROR(Prepare(*here));
  Expect(*engine_, *here);
  MT_RETURN_IF_ERROR(strategy::BeginPass(*here));
  return FitOn({.own = &data, .here = here.get()}, SizesOf(*here), options);
}

Result<History> Model::FitOn(FitWork work, const std::set<int64_t>& sizes,
                             const FitOptions& options) {
  std::optional<strategy::PipelineBatches> validation;
  std::set<int64_t> validation_sizes;
  if (options.validation != nullptr) {
    data::Pipeline& data = *options.validation;
    MT_RETURN_IF_ERROR(
        CheckComponents(recipe_->components, data.component_names()).At("validation"));
    Expect(*engine_, data);
    validation.emplace(data);
    validation_sizes = SizesOf(data);
  }
  MT_RETURN_IF_ERROR(engine_->Plan("fit", sizes, validation_sizes));
  MT_RETURN_IF_ERROR(engine_->Agree({work.here, options.validation}, {}));
  KerasBar bar(step_);
  work.callbacks = {&bar};
  work.callbacks.insert(work.callbacks.end(), options.callbacks.begin(), options.callbacks.end());
  work.options = {.epochs = options.epochs,
                  .steps_per_epoch = options.steps_per_epoch,
                  .validation = validation ? &*validation : nullptr,
                  .validation_steps = options.validation_steps,
                  .validate_every = options.validate_every,
                  .end_after_bad_steps = options.end_after_bad_steps,
                  .start = {.step = step_}};
  MT_ASSIGN_OR_RETURN(train::FitResult result, engine_->Fit(std::move(work), options.stop));
  step_ = result.position.step;
  return History{std::move(result.history), std::move(bar.epochs), result.end,
                 std::move(result.message)};
}

Result<History> Model::Fit(Arrays data, FitOptions options) {
  MT_ASSIGN_OR_RETURN(
      const auto pipeline,
      strategy::ArraysPipeline({std::move(data.x), std::move(data.y)}, data.batch_size));
  return Fit(*pipeline, std::move(options));
}

Result<train::Scalars> Model::Evaluate(data::Pipeline& data, int64_t steps, std::stop_token stop) {
  MT_RETURN_IF_ERROR(Prepare(data));
  Expect(*engine_, data);
  MT_RETURN_IF_ERROR(engine_->Plan("evaluate", {}, SizesOf(data)));
  MT_RETURN_IF_ERROR(engine_->Agree({&data}, {}));
  strategy::PipelineBatches batches(data);
  return engine_->Evaluate(batches, steps, std::move(stop));
}

Result<train::Scalars> Model::Evaluate(Arrays data) {
  MT_ASSIGN_OR_RETURN(
      const auto pipeline,
      strategy::ArraysPipeline({std::move(data.x), std::move(data.y)}, data.batch_size));
  return Evaluate(*pipeline);
}

Result<std::vector<size_t>> Model::InputsOf(const std::vector<std::string>& names) const {
  train::Recipe recipe{.components = names};
  if (recipe_ != nullptr) {
    recipe.heads = recipe_->heads;
    recipe.inputs = recipe_->inputs;
  }
  return train::ModelInputs(recipe);
}

Result<const Model::Prediction*> Model::PredictionFor(std::span<const TensorType> inputs) {
  if (layer_ == nullptr) return InvalidArgument("predict: expected a model, got: none");
  std::string types;
  for (const TensorType& type : inputs) {
    if (type.rank() == 0) {
      return InvalidArgument("predict: expected inputs [N, ...], got: " + type.ToString());
    }
    types += type.ToString() + " ";
  }
  const std::optional<program::DType> compute = recipe_ ? recipe_->compute : std::nullopt;
  if (compute) types += "in " + std::string(mesh::DTypeName(*compute));
  const auto known = std::ranges::find(predictions_, types, &Prediction::types);
  if (known != predictions_.end()) {
    predictions_.splice(predictions_.end(), predictions_, known);
    return &predictions_.back();
  }
  const strategy::StrategyScope scope(strategy_);
  std::vector<train::NamedInput> named;
  for (size_t i = 0; i < inputs.size(); ++i) {
    named.push_back(
        {inputs.size() == 1 ? std::string(train::kInputName) : "x" + std::to_string(i), inputs[i]});
  }
  MT_ASSIGN_OR_RETURN(const train::Prediction made_of,
                      train::BuildPrediction(*layer_, named, /*seed=*/0, compute));
  MT_RETURN_IF_ERROR(GiveTo(strategy_, WeightsOf(layer_.get()), restored_));
  Prediction made{.types = std::move(types), .number = 0, .rows = {}};
  for (const train::NamedInput& input : named) {
    const auto rows = made_of.rows.find(input.name);
    made.rows.push_back(rows == made_of.rows.end() ? 0 : rows->second);
  }
  // Before the next one takes its memory.
  if (predictions_.size() >= kMostPredictions &&
      engine_->RemovePrediction(predictions_.front().number)) {
    predictions_.pop_front();
  }
  MT_ASSIGN_OR_RETURN(made.number, engine_->AddPrediction(made_of, /*whole=*/false));
  predictions_.push_back(std::move(made));
  return &predictions_.back();
}

Result<Tensor> Model::PredictOnBatch(const Tensor& x) { return PredictOnBatch({&x, 1}); }

Result<Tensor> Model::PredictOnBatch(std::span<const Tensor> inputs) {
  MT_RETURN_IF_ERROR(OneOutput("PredictOutputsOnBatch"));
  MT_ASSIGN_OR_RETURN(NamedTensors outputs, PredictOutputsOnBatch(inputs));
  return std::move(outputs.begin()->second);
}

Result<Model::NamedTensors> Model::PredictOutputsOnBatch(std::span<const Tensor> inputs) {
  MT_RETURN_IF_ERROR(SendPrediction(inputs));
  MT_ASSIGN_OR_RETURN(std::vector<Tensor> outputs, engine_->TakePrediction({}));
  return Named(std::move(outputs));
}

Status Model::OneOutput(std::string_view call) const {
  if (layer_ == nullptr || layer_->outputs().size() == 1) return OkStatus();
  return InvalidArgument("predict: expected a model of one output (" + std::string(call) +
                         " gives all), got: " + Join(layer_->outputs(), ", "));
}

Model::NamedTensors Model::Named(std::vector<Tensor> outputs) const {
  const std::vector<std::string> names = layer_->outputs();
  NamedTensors named;
  for (size_t i = 0; i < names.size(); ++i) named.emplace(names[i], std::move(outputs[i]));
  return named;
}

Status Model::SendPrediction(std::span<const Tensor> inputs) {
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back(input.type());
  MT_ASSIGN_OR_RETURN(const Prediction* const prediction, PredictionFor(types));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (prediction->rows[i] == 0) continue;
    MT_RETURN_IF_ERROR(
        data::CheckIds(inputs[i], prediction->rows[i], ExamplesOf(inputs[i]), "predict"));
  }
  return engine_->SendPrediction(prediction->number, inputs);
}

Result<Tensor> Model::Predict(data::Pipeline& data, std::stop_token stop) {
  MT_RETURN_IF_ERROR(OneOutput("PredictOutputs"));
  MT_ASSIGN_OR_RETURN(NamedTensors outputs, PredictOutputs(data, std::move(stop)));
  return std::move(outputs.begin()->second);
}

Result<Model::NamedTensors> Model::PredictOutputs(data::Pipeline& data, std::stop_token stop) {
  if (data.endless()) {
    return InvalidArgument(
        "predict: expected data of which a pass ends, got: data that repeats for ever "
        "(PredictOnBatch takes one batch)");
  }
  MT_ASSIGN_OR_RETURN(const std::vector<size_t> places, InputsOf(data.component_names()));
  MT_RETURN_IF_ERROR(strategy::BeginPass(data));
  MT_ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                      PredictPass(
                          *engine_, data,
                          [&](const data::Batch& batch) {
                            std::vector<Tensor> inputs;
                            for (const size_t place : places) {
                              inputs.push_back(batch.components[place]);
                            }
                            return SendPrediction(inputs);
                          },
                          stop));
  return Named(std::move(outputs));
}

Result<Tensor> Model::Predict(Tensor x, int64_t batch_size) {
  MT_RETURN_IF_ERROR(OneOutput("PredictOutputs"));
  MT_ASSIGN_OR_RETURN(const auto pipeline, strategy::ArraysPipeline({std::move(x)}, batch_size));
  return Predict(*pipeline);
}

Result<Model::NamedTensors> Model::PredictOutputs(Tensor x, int64_t batch_size) {
  MT_ASSIGN_OR_RETURN(const auto pipeline, strategy::ArraysPipeline({std::move(x)}, batch_size));
  return PredictOutputs(*pipeline);
}

Result<std::string> Model::Save(const std::string& folder) {
  std::vector<program::Variable> states = engine_->states();
  if (states.empty()) states = WeightsOf(layer_.get());
  if (states.empty()) {
    return FailedPrecondition("save: expected a model whose weights are made, got: none");
  }
  return strategy_.Save(folder, step_, states);
}

Status Model::Restore(const std::string& folder) {
  const auto take = [this](std::unique_ptr<checkpoint::Checkpoint> from) -> Status {
    std::map<std::string, Tensor> values;
    for (const auto& [name, record] : from->index().variables) {
      MT_ASSIGN_OR_RETURN(Tensor value, from->Load(name));
      values.emplace(name, std::move(value));
    }
    const Status given =
        prepared_ ? engine_->Give(values) : GiveTo(strategy_, WeightsOf(layer_.get()), values);
    MT_RETURN_IF_ERROR(given.At(from->path()));
    if (prepared_) values.clear();
    restored_ = std::move(values);
    return OkStatus();
  };
  MT_ASSIGN_OR_RETURN(step_, saving::RestoreNewest(folder, take));
  return OkStatus();
}

}  // namespace meshtrain::trainer
