#include "runtime/distribute/strategy/model.h"

#include <utility>

#include "runtime/distribute/strategy/dataset.h"
#include "runtime/program/ops.h"

namespace meshtrain::distribute {

using mesh::Tensor;
using mesh::TensorType;

namespace {

// Collects what Keras' progress bar shows of each epoch.
class KerasBar final : public train::Callback {
 public:
  Status OnStepEnd(const train::StepInfo& info) override {
    const train::Position& at = info.position;
    if (at.batch <= 1) sums_.clear();
    for (const auto& [name, last] : info.scalars) {
      const double running = at.sums.at(name) / static_cast<double>(at.batch);
      sums_[name] += running;
      running_[name] = running;
    }
    steps_ = at.batch;
    return OkStatus();
  }
  Status OnEpochEnd(const train::EpochInfo& info) override {
    train::Scalars& shown = epochs.emplace_back();
    for (const auto& [name, mean] : info.train) {
      shown.emplace_back(name, (sums_[name] + running_[name]) / static_cast<double>(steps_ + 1));
    }
    return OkStatus();
  }
  std::vector<train::Scalars> epochs;

 private:
  std::map<std::string, double> sums_, running_;
  int64_t steps_ = 0;
};

// Of a pass's batches.
std::set<int64_t> SizesOf(const data::Pipeline& data) {
  return {data.batch_size(), data.last_batch_size()};
}

}  // namespace

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

Model::Model(std::shared_ptr<nn::Layer> layer, Strategy& strategy)
    : layer_(std::move(layer)), strategy_(strategy) {}
Model::~Model() = default;

Status Model::Compile(CompileOptions options) {
  if (layer_ == nullptr) return InvalidArgument("compile: expected a model, got: none");
  if (options.optimizer == nullptr) {
    return InvalidArgument("compile: expected an optimizer, got: none");
  }
  const StrategyScope scope(strategy_);
  recipe_ = std::make_unique<train::Recipe>(train::Recipe{.model = layer_,
                                                          .loss = options.loss,
                                                          .optimizer = std::move(options.optimizer),
                                                          .metrics = std::move(options.metrics),
                                                          .layouts = {},
                                                          .seed = options.seed});
  if (runner_ != nullptr) {
    for (const nn::Parameter& slot : runner_->programs().slots) strategy_.Retire(slot);
  }
  runner_.reset();
  return OkStatus();
}

Status Model::Prepare(data::Pipeline& data, bool training) {
  MT_RETURN_IF_ERROR(Prepare(data.BatchTypes(data.batch_size())));
  for (const int64_t size : SizesOf(data)) {
    MT_RETURN_IF_ERROR(training ? runner_->PlanTraining(size) : runner_->PlanEvaluation(size));
  }
  return OkStatus();
}

Status Model::Prepare(const std::vector<TensorType>& types) {
  if (recipe_ == nullptr) {
    return FailedPrecondition("model: expected Compile before Fit and Evaluate");
  }
  if (types.size() != 2) {
    return InvalidArgument("model: expected data of x and y, got: " + std::to_string(types.size()) +
                           " components");
  }
  if (runner_ == nullptr) {
    const auto trace = [this](const std::vector<TensorType>& of) -> Result<TracedSteps> {
      const StrategyScope scope(strategy_);
      MT_ASSIGN_OR_RETURN(train::Programs programs, train::BuildPrograms(*recipe_, of[0], of[1]));
      TracedSteps traced{.programs = std::move(programs), .layouts = {}};
      const std::string_view names[] = {train::kInputName, train::kLabelName};
      for (size_t i = 0; i < 2; ++i) {
        MT_ASSIGN_OR_RETURN(mesh::Layout split,
                            mesh::Layout::BatchSharded(strategy_.mesh(), "batch", of[i].rank()));
        traced.layouts.inputs.emplace(names[i], std::move(split));
      }
      return traced;
    };
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
    MeshRunner::Options options{.types = types,
                                .train_sizes = {},
                                .eval_sizes = {},
                                .plan_on_demand = true,
                                .packing = strategy_.packing()};
    options.declare = [this](const std::vector<nn::Parameter>& states) {
      return strategy_.PrepareOnMesh(states);
    };
    MT_ASSIGN_OR_RETURN(runner_,
                        MeshRunner::Create(*session, strategy_.mesh(), trace, std::move(options)));
  }
  // A custom loop may have had them since.
  return strategy_.PrepareOnMesh(runner_->states());
}

Result<History> Model::Fit(data::Pipeline& data, FitOptions options) {
  MT_RETURN_IF_ERROR(Prepare(data, /*training=*/true));
  MT_RETURN_IF_ERROR(BeginPass(data));
  PipelineBatches batches(data);
  return FitOn(batches, SizesOf(data), std::move(options));
}

Result<History> Model::Fit(train::BatchSource& batches, const std::vector<TensorType>& types,
                           FitOptions options) {
  MT_RETURN_IF_ERROR(Prepare(types));
  return FitOn(batches, {types[0].dims[0]}, std::move(options));
}

Result<History> Model::FitOn(train::BatchSource& batches, const std::set<int64_t>& sizes,
                             FitOptions options) {
  std::vector<uint64_t> hashes;
  for (const int64_t size : sizes) {
    MT_RETURN_IF_ERROR(runner_->PlanTraining(size));
    hashes.push_back(runner_->plan_hash(/*training=*/true, size));
  }
  std::optional<PipelineBatches> validation;
  if (options.validation != nullptr) {
    MT_RETURN_IF_ERROR(Prepare(*options.validation, /*training=*/false).At("validation"));
    validation.emplace(*options.validation);
    for (const int64_t size : SizesOf(*options.validation)) {
      hashes.push_back(runner_->plan_hash(/*training=*/false, size));
    }
  }
  MT_RETURN_IF_ERROR(strategy_.AgreeOnPlans(hashes).At("fit"));
  KerasBar bar;
  std::vector<train::Callback*> callbacks = {&bar};
  callbacks.insert(callbacks.end(), options.callbacks.begin(), options.callbacks.end());
  MT_ASSIGN_OR_RETURN(train::FitResult result,
                      train::Fit(*runner_, batches,
                                 {.epochs = options.epochs,
                                  .steps_per_epoch = options.steps_per_epoch,
                                  .validation = validation ? &*validation : nullptr,
                                  .validation_steps = options.validation_steps,
                                  .validate_every = options.validate_every,
                                  .start = {.step = step_}},
                                 callbacks, options.stop));
  step_ = result.position.step;
  return History{std::move(result.history), std::move(bar.epochs), result.end,
                 std::move(result.message)};
}

Result<History> Model::Fit(Arrays data, FitOptions options) {
  MT_ASSIGN_OR_RETURN(const auto pipeline,
                      ArraysPipeline({std::move(data.x), std::move(data.y)}, data.batch_size));
  return Fit(*pipeline, std::move(options));
}

Result<train::Scalars> Model::Evaluate(data::Pipeline& data, int64_t steps, std::stop_token stop) {
  MT_RETURN_IF_ERROR(Prepare(data, /*training=*/false));
  std::vector<uint64_t> hashes;
  for (const int64_t size : SizesOf(data)) {
    hashes.push_back(runner_->plan_hash(/*training=*/false, size));
  }
  MT_RETURN_IF_ERROR(strategy_.AgreeOnPlans(hashes).At("evaluate"));
  MT_RETURN_IF_ERROR(BeginPass(data));
  PipelineBatches batches(data);
  return train::Evaluate(*runner_, batches, steps, std::move(stop));
}

Result<train::Scalars> Model::Evaluate(Arrays data) {
  MT_ASSIGN_OR_RETURN(const auto pipeline,
                      ArraysPipeline({std::move(data.x), std::move(data.y)}, data.batch_size));
  return Evaluate(*pipeline);
}

Result<Model::PredictStep*> Model::PredictFor(const TensorType& x) {
  if (layer_ == nullptr) return InvalidArgument("predict: expected a model, got: none");
  if (x.rank() == 0) return InvalidArgument("predict: expected x [N, ...], got: " + x.ToString());
  const auto known = predict_.find(x.ToString());
  if (known != predict_.end()) return &known->second;
  const StrategyScope scope(strategy_);
  program::Builder builder("predict");
  const program::Builder::Scope recording(builder);
  const nn::ContextScope context({.training = false});
  builder.Output("predictions", (*layer_)(builder.Input(std::string(train::kInputName), x)));
  MT_ASSIGN_OR_RETURN(const program::Program program, builder.Build());
  PredictStep made{.parameters = layer_->parameters(), .step = nullptr};
  MT_RETURN_IF_ERROR(strategy_.PrepareOnMesh(made.parameters));
  MT_ASSIGN_OR_RETURN(mesh::Layout split,
                      mesh::Layout::BatchSharded(strategy_.mesh(), "batch", x.rank()));
  MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_.session());
  MT_ASSIGN_OR_RETURN(made.step,
                      session->Load(program, strategy_.mesh(), builder.variables(),
                                    {.inputs = {{std::string(train::kInputName), split}}}));
  return &predict_.emplace(x.ToString(), std::move(made)).first->second;
}

Result<Tensor> Model::PredictOnBatch(const Tensor& x) {
  MT_ASSIGN_OR_RETURN(PredictStep * predict, PredictFor(x.type()));
  MT_RETURN_IF_ERROR(strategy_.PrepareOnMesh(predict->parameters));
  MT_RETURN_IF_ERROR(predict->step->Feed(0, x));
  MT_RETURN_IF_ERROR(predict->step->Run());
  return predict->step->Fetch(0);
}

Result<Tensor> Model::Predict(data::Pipeline& data, std::stop_token stop) {
  MT_RETURN_IF_ERROR(BeginPass(data));
  std::vector<Tensor> parts;
  for (;;) {
    MT_ASSIGN_OR_RETURN(const std::optional<data::Batch> batch, data.Next(stop));
    if (!batch) break;
    MT_ASSIGN_OR_RETURN(Tensor part, PredictOnBatch(batch->components[0]));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return InvalidArgument("predict: expected at least one batch, got: none");
  TensorType type = parts[0].type();
  if (type.rank() == 0) {
    return InvalidArgument("predict: expected predictions [N, ...], got: " + type.ToString());
  }
  type.dims[0] = 0;
  for (const Tensor& part : parts) type.dims[0] += part.dims()[0];
  Tensor all(type);
  mesh::Dims at(type.dims.size(), 0);
  for (const Tensor& part : parts) {
    all.Paste(part, at);
    at[0] += part.dims()[0];
  }
  return all;
}

Result<Tensor> Model::Predict(Tensor x, int64_t batch_size) {
  MT_ASSIGN_OR_RETURN(const auto pipeline, ArraysPipeline({std::move(x)}, batch_size));
  return Predict(*pipeline);
}

Result<std::string> Model::Save(const std::string& folder) {
  const std::vector<nn::Parameter>& states =
      runner_ != nullptr ? runner_->states() : layer_->parameters();
  if (states.empty()) {
    return FailedPrecondition("save: expected a model whose weights are made, got: none");
  }
  return strategy_.Save(folder, step_,
                        std::vector<program::Variable>(states.begin(), states.end()));
}

Status Model::Restore(const std::string& folder) {
  MT_ASSIGN_OR_RETURN(step_, strategy_.Restore(folder));
  return OkStatus();
}

}  // namespace meshtrain::distribute
