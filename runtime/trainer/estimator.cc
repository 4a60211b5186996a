#include "runtime/trainer/estimator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/nn/layer.h"
#include "runtime/program/ops.h"

namespace meshtrain::trainer {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;
using program::Value;

namespace {

// One number, or `size` of them, per example.
bool Holds(const TensorType& type, int64_t size) {
  if (type.dtype != DType::kF32) return false;
  return (type.rank() == 1 && size == 1) || (type.rank() == 2 && type.dims[1] == size);
}

// Joins one batch per replica into a global one: x with the columns side by side, y [N, 1].
class JoinedBatches final : public train::BatchSource {
 public:
  static Result<JoinedBatches> Create(const std::vector<NumericColumn>& columns, Examples examples,
                                      int64_t replicas) {
    JoinedBatches made;
    if (examples.pipeline == nullptr) {
      return InvalidArgument("input function: expected a pipeline, got: none");
    }
    const std::vector<TensorType> types =
        examples.pipeline->BatchTypes(examples.pipeline->batch_size());
    if (types.size() != examples.names.size() + 1) {
      return InvalidArgument("input function: expected " + std::to_string(examples.names.size()) +
                             " features and the labels, got: " + std::to_string(types.size()) +
                             " components");
    }
    for (const NumericColumn& column : columns) {
      const auto name = std::find(examples.names.begin(), examples.names.end(), column.key);
      if (name == examples.names.end()) {
        return InvalidArgument("input function: expected a feature `" + column.key +
                               "`, got none of that name");
      }
      const auto at = static_cast<size_t>(name - examples.names.begin());
      if (!Holds(types[at], column.size)) {
        return InvalidArgument("feature `" + column.key + "`: expected f32[N," +
                               std::to_string(column.size) + "], got: " + types[at].ToString());
      }
      made.columns_.push_back({at, column.size});
      made.width_ += column.size;
    }
    if (!Holds(types.back(), 1)) {
      return InvalidArgument("labels: expected f32[N,1], got: " + types.back().ToString());
    }
    made.pipeline_ = std::move(examples.pipeline);
    made.replicas_ = replicas;
    return made;
  }

  std::vector<TensorType> types() const {
    const int64_t n = pipeline_->batch_size() * replicas_;
    return {TensorType{DType::kF32, {n, width_}}, TensorType{DType::kF32, {n, 1}}};
  }

  bool endless() const override { return pipeline_->endless(); }
  Result<std::optional<train::Batch>> Next(std::stop_token stop) override {
    std::vector<data::Batch> parts;
    int64_t size = 0;
    if (std::exchange(over_, false)) return std::optional<train::Batch>();
    while (static_cast<int64_t>(parts.size()) < replicas_) {
      MT_ASSIGN_OR_RETURN(std::optional<data::Batch> part, pipeline_->Next(stop));
      if (!part) {
        over_ = !parts.empty();  // what is left makes a shorter step
        break;
      }
      size += part->size;
      parts.push_back(std::move(*part));
    }
    if (parts.empty()) return std::optional<train::Batch>();
    train::Batch batch{.components = {Tensor(TensorType{DType::kF32, {size, width_}}),
                                      Tensor(TensorType{DType::kF32, {size, 1}})},
                       .size = size};
    float* x = batch.components[0].mutable_values<float>().data();
    float* y = batch.components[1].mutable_values<float>().data();
    for (const data::Batch& part : parts) {
      const std::span<const float> labels = part.components.back().values<float>();
      y = std::copy(labels.begin(), labels.end(), y);
      for (int64_t row = 0; row < part.size; ++row) {
        for (const auto& [component, n] : columns_) {
          x = std::copy_n(part.components[component].values<float>().data() + row * n, n, x);
        }
      }
    }
    return std::optional<train::Batch>(std::move(batch));
  }

 private:
  struct Column {
    size_t component;
    int64_t size;
  };
  std::unique_ptr<data::Pipeline> pipeline_;
  std::vector<Column> columns_;
  int64_t width_ = 0;
  int64_t replicas_ = 1;
  bool over_ = false;  // the pass, which is said with the next call
};

}  // namespace

// The sum of each column's features by its weights, and the bias; all begin at zero.
class LinearRegressor::Linear final : public nn::Layer {
 public:
  explicit Linear(std::vector<NumericColumn> columns)
      : Layer("linear_model"), columns_(std::move(columns)) {}
  std::string_view kind() const override { return "linear_model"; }

 protected:
  void Build(std::span<const TensorType>) override {
    for (const NumericColumn& c : columns_) {
      weights_.push_back(
          AddParameter(c.key + ".weights", {DType::kF32, {c.size, 1}}, nn::Initializer::Zeros()));
    }
    bias_ = AddParameter("bias_weights", {DType::kF32, {1}}, nn::Initializer::Zeros());
  }
  Value Call(const Value& x) override {
    Value y;
    int64_t at = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const Value own = program::Slice(x, {0, at}, {x.dims()[0], columns_[i].size});
      const Value part = program::MatMul(own, weights_[i]);
      y = y.valid() ? y + part : part;
      at += columns_[i].size;
    }
    return y + bias_;
  }

 private:
  std::vector<NumericColumn> columns_;
  std::vector<nn::Parameter> weights_;
  nn::Parameter bias_;
};

std::map<std::string, double> Evaluation::ByName() const {
  return {{"average_loss", average_loss},
          {"global_step", static_cast<double>(global_step)},
          {"label/mean", label_mean},
          {"loss", loss},
          {"prediction/mean", prediction_mean}};
}

LinearRegressor::LinearRegressor(std::vector<NumericColumn> columns,
                                 std::shared_ptr<train::Optimizer> optimizer, RunConfig config)
    : columns_(std::move(columns)), optimizer_(std::move(optimizer)), config_(std::move(config)) {
  train_.strategy =
      config_.train_distribute != nullptr ? config_.train_distribute : &strategy::GetStrategy();
  eval_.strategy =
      config_.eval_distribute != nullptr ? config_.eval_distribute : &strategy::GetStrategy();
}
LinearRegressor::~LinearRegressor() = default;

Status LinearRegressor::Open(Side& side, std::shared_ptr<train::Optimizer> optimizer) {
  if (side.model != nullptr) return OkStatus();
  if (columns_.empty()) {
    return InvalidArgument("linear regressor: expected a feature column, got: none");
  }
  for (const NumericColumn& c : columns_) {
    if (c.size >= 1) continue;
    return InvalidArgument("column `" + c.key +
                           "`: expected a size of at least 1, got: " + std::to_string(c.size));
  }
  side.layer = std::make_shared<Linear>(columns_);
  side.model = std::make_unique<Model>(side.layer, *side.strategy);
  return side.model->Compile(
      {.loss = train::losses::MeanSquaredError(), .optimizer = std::move(optimizer)});
}

Status LinearRegressor::Load(Side& side) {
  if (config_.model_dir.empty()) return OkStatus();
  const Status restored = side.model->Restore(config_.model_dir);
  if (!restored.ok() && restored.code() != StatusCode::kNotFound) return restored;
  global_step_ = side.model->steps();
  return OkStatus();
}

const std::vector<nn::Parameter>& LinearRegressor::parameters() const {
  static const std::vector<nn::Parameter> none;
  if (train_.layer != nullptr) return train_.layer->parameters();
  return eval_.layer != nullptr ? eval_.layer->parameters() : none;
}

Status LinearRegressor::Train(const InputFn& input_fn, int64_t steps) {
  if (steps < 1) {
    return InvalidArgument("train: expected at least 1 step, got: " + std::to_string(steps));
  }
  MT_RETURN_IF_ERROR(Open(train_, optimizer_));
  if (!trained_) MT_RETURN_IF_ERROR(Load(train_));
  MT_ASSIGN_OR_RETURN(Examples examples, input_fn());
  MT_ASSIGN_OR_RETURN(JoinedBatches batches,
                      JoinedBatches::Create(columns_, std::move(examples),
                                            train_.strategy->num_replicas_in_sync()));
  MT_RETURN_IF_ERROR(train_.model->Build(batches.types()[0]));
  trained_ = true;  // this side has the weights
  MT_ASSIGN_OR_RETURN(const History history,
                      train_.model->Fit(batches, batches.types(), {.steps_per_epoch = steps}));
  global_step_ = train_.model->steps();
  if (history.end == train::FitEnd::kNotFinite) {
    return Aborted("train: " + history.message).From(Origin::kNumbers);
  }
  if (config_.model_dir.empty()) return OkStatus();
  return train_.model->Save(config_.model_dir).status();
}

Status LinearRegressor::CopyWeights() {
  const std::vector<nn::Parameter>& from = train_.layer->parameters();
  const std::vector<nn::Parameter>& to = eval_.layer->parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    MT_ASSIGN_OR_RETURN(const Tensor value, train_.strategy->Read(from[i]));
    MT_RETURN_IF_ERROR(eval_.strategy->Assign(to[i], value));
  }
  return OkStatus();
}

Result<Evaluation> LinearRegressor::Evaluate(const InputFn& input_fn, int64_t steps) {
  if (steps == 0) {
    return InvalidArgument("evaluate: expected at least 1 step, or -1 for a pass, got: 0");
  }
  const bool shared = train_.strategy == eval_.strategy;
  Side& side = shared ? train_ : eval_;
  // An optimizer belongs to the side that trains.
  MT_RETURN_IF_ERROR(
      Open(side, shared ? optimizer_ : std::shared_ptr<train::Optimizer>(train::Sgd())));
  MT_ASSIGN_OR_RETURN(Examples examples, input_fn());
  MT_ASSIGN_OR_RETURN(
      JoinedBatches batches,
      JoinedBatches::Create(columns_, std::move(examples), side.strategy->num_replicas_in_sync()));
  MT_RETURN_IF_ERROR(side.model->Build(batches.types()[0]));
  if (!trained_) {
    MT_RETURN_IF_ERROR(Load(side));
  } else if (!shared) {
    MT_RETURN_IF_ERROR(CopyWeights());
  }
  // Sums over the examples, until the end.
  Evaluation out{.global_step = global_step_};
  int64_t count = 0, examples_seen = 0;
  bool empty_pass = false;
  while (steps < 0 || count < steps) {
    MT_ASSIGN_OR_RETURN(const std::optional<train::Batch> batch, batches.Next({}));
    if (!batch) {
      if (steps < 0 && count > 0) break;
      if (empty_pass || steps < 0) {
        return InvalidArgument("evaluate: a pass of the data holds no batch");
      }
      empty_pass = true;
      continue;
    }
    empty_pass = false;
    MT_ASSIGN_OR_RETURN(const Tensor predicted, side.model->PredictOnBatch(batch->components[0]));
    const std::span<const float> p = predicted.values<float>(),
                                 y = batch->components[1].values<float>();
    for (size_t i = 0; i < y.size(); ++i) {
      const double miss = static_cast<double>(p[i]) - static_cast<double>(y[i]);
      out.average_loss += miss * miss;
      out.label_mean += y[i];
      out.prediction_mean += p[i];
    }
    examples_seen += batch->size;
    ++count;
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, examples_seen));
  out.average_loss /= n;
  out.label_mean /= n;
  out.prediction_mean /= n;
  out.loss = out.average_loss;
  return out;
}

}  // namespace meshtrain::trainer
