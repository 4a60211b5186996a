// Compile, Fit, Evaluate, Predict under a strategy, as Keras has them.
//
//   auto scope = strategy->Scope();
//   Model model(std::make_shared<nn::Sequential>(
//       nn::Dense(1, {.kernel_regularizer = nn::L2(1e-4)})));
//   MT_RETURN_IF_ERROR(model.Compile(
//       {.loss = train::losses::MeanSquaredError(), .optimizer = train::Sgd()}));
//   MT_ASSIGN_OR_RETURN(History history, model.Fit(*pipeline, {.epochs = 2}));
//
// A step is one program over the whole batch, split over the strategy's mesh: means are over all
// examples, whatever a device's share of them. So are the figures of an epoch, in which a batch
// counts by its examples (docs/numerics.md); Keras' progress bar shows others (History::keras_bar).
// One thread; with several processes each calls the same with the same data; where a team joins
// them, Fit and Evaluate begin by comparing what they are about to run. With parameter servers a
// step is one program on one worker, and several run at once (strategy/server_strategy.h).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/nn/layer.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/loop.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::plan {
struct Plan;
}
namespace meshtrain::train {
struct Recipe;
}

namespace meshtrain::trainer {

class Engine;
struct FitWork;

// Of several inputs or outputs: data whose components have names (data::MemoryArrays::names, a
// Source's), labels among them. Of several outputs:
//
//   model.Compile({.optimizer = train::Adam(),
//                  .heads = {{.output = "digit", .labels = "digit", .loss = ..., .metrics = {...}},
//                            {.output = "parity", .labels = "odd", .loss = ..., .weight = 0.2}}});
struct CompileOptions {
  train::Loss loss = {};
  std::shared_ptr<train::Optimizer> optimizer;
  std::vector<train::Metric> metrics = {};  // train::metrics::Accuracy()
  int64_t seed = nn::RandomSeed();          // of dropout; initial values follow the strategy's
  std::string labels = std::string(train::kLabelName);  // the component that the loss compares with
  // The components that the model takes, in this order; none: all but the labels.
  std::vector<std::string> inputs = {};
  // Parts that each batch is computed in, one after the other, for one change of the weights
  // (train::Recipe).
  int64_t accumulate = 1;
  // bf16 or f16: what layers compute in, and what the loss is multiplied with on the way back
  // (train::Recipe). None: their inputs' type.
  std::optional<program::DType> compute = {};
  bool narrow_sums = false;  // gradients are summed over devices in `compute`, not in f32
  double loss_scale = 1;
  // Layers, by rules over their paths, whose values are computed again on the way back
  // (train::Recipe).
  std::vector<std::string> recompute = {};
  // Of a model whose outputs have names (nn::Layer::outputs), one for each, in the place of `loss`,
  // `metrics` and `labels`. Figures are `loss`, and of each `digit_loss`, `digit_accuracy`
  // (train::Recipe::heads, train::Head).
  std::vector<train::Head> heads = {};
};

// x [N, ...] and y [N, ...] at hand, in batches of `batch_size`.
struct Arrays {
  mesh::Tensor x;
  mesh::Tensor y;
  int64_t batch_size = 32;
};

// Data that each worker of parameter servers reads for itself, under a name of its own.
struct NamedData {
  std::string name;
  data::PipelineSpec spec;
};

struct FitOptions {
  int64_t epochs = 1;
  // -1: a pass, kInvalidArgument where it has no end (Pipeline::endless; also of the validation);
  // else passes are joined end to end.
  int64_t steps_per_epoch = -1;
  // Each validation is of the same pass, from its first batch on; so never the pipeline that is
  // trained with (kInvalidArgument).
  data::Pipeline* validation = nullptr;
  int64_t validation_steps = -1;  // batches; -1, as more than it has: all of the pass
  int64_t validate_every = 1;     // epochs
  // Steps in a row that change nothing, because their loss or a gradient is not finite, with which
  // training ends. 1 with parameter servers; else kInvalidArgument.
  int64_t end_after_bad_steps = 1;
  std::vector<train::Callback*> callbacks = {};
  std::stop_token stop = {};  // with several processes: asked of all between the same two steps
};

struct History {
  std::vector<train::EpochInfo> epochs;
  // Per epoch, what Keras' progress bar shows at its end: the mean of the running means, the last
  // of them twice. Bad steps have none.
  std::vector<train::Scalars> keras_bar;
  train::FitEnd end = train::FitEnd::kFinished;
  std::string message;  // why it ended before its end
  // One output over the epochs: "loss", "accuracy", "val_loss". Empty where there is none.
  std::vector<double> Of(const std::string& name) const;
};

class Model {
 public:
  // `strategy` outlives the model. Its weights are made when the first batch is seen.
  explicit Model(std::shared_ptr<nn::Layer> layer,
                 strategy::Strategy& strategy = strategy::GetStrategy());
  ~Model();

  // Errors (of the first Fit, Evaluate or Predict too): kInvalidArgument with the place in the
  // model.
  Status Compile(CompileOptions options);
  Result<History> Fit(data::Pipeline& data, FitOptions options = {});
  Result<History> Fit(Arrays data, FitOptions options = {});
  // With parameter servers each worker reads this for itself, in an order of its own, so that no
  // batch goes through the chief; elsewhere it is a pipeline. A name that was given before goes on
  // where its data stands, whatever its spec.
  Result<History> Fit(const NamedData& data, FitOptions options = {});
  // Batches from anywhere; `types`: of a full one's components.
  Result<History> Fit(train::BatchSource& batches, const std::vector<mesh::TensorType>& types,
                      FitOptions options = {});
  // Means over the examples of a pass, or of its first `steps` batches: the pass where the data
  // stands if it stands at the beginning of one, else the next. kInvalidArgument for a pass without
  // an end.
  Result<train::Scalars> Evaluate(data::Pipeline& data, int64_t steps = -1,
                                  std::stop_token stop = {});
  Result<train::Scalars> Evaluate(Arrays data);
  // The predictions for every example of a pass, which must have an end, in order. Components that
  // the model does not take may be there. A model of several outputs: kInvalidArgument, here and
  // below.
  Result<mesh::Tensor> Predict(data::Pipeline& data, std::stop_token stop = {});
  Result<mesh::Tensor> Predict(mesh::Tensor x, int64_t batch_size = 32);
  // The predictions for one batch. Over a mesh the steps of the kMostPredictions types of batches
  // that were used last are kept, here and by Predict; one that comes again is compiled anew.
  static constexpr size_t kMostPredictions = 16;
  Result<mesh::Tensor> PredictOnBatch(const mesh::Tensor& x);
  Result<mesh::Tensor> PredictOnBatch(std::span<const mesh::Tensor> inputs);
  // The same of all outputs, by their names; "": of a model of one output.
  using NamedTensors = std::map<std::string, mesh::Tensor>;
  Result<NamedTensors> PredictOutputs(data::Pipeline& data, std::stop_token stop = {});
  Result<NamedTensors> PredictOutputs(mesh::Tensor x, int64_t batch_size = 32);
  Result<NamedTensors> PredictOutputsOnBatch(std::span<const mesh::Tensor> inputs);
  // Makes the weights, for batches of this type; else the first batch does.
  Status Build(const mesh::TensorType& x) { return PredictionFor({&x, 1}).status(); }

  const std::vector<nn::Parameter>& parameters() const { return layer_->parameters(); }
  int64_t steps() const { return step_; }  // trained so far, in callbacks too
  // Of the training step for full batches; null before Fit or Evaluate, and with parameter servers.
  const plan::Plan* plan() const;
  // For people: each layer that computes something with what it gives for a full batch and its
  // number of parameters; each weight with its type, its layout and its bytes on a device; the sum,
  // and what a training step holds on a device. Errors: kFailedPrecondition where there is no
  // plan().
  Result<std::string> Summary() const;
  // Saves weights and slots as of the step at hand (in the chief). In a callback: at a step's end,
  // with parameter servers at an epoch's (others are under way else).
  Result<std::string> Save(const std::string& folder);
  // Goes on from the newest save: this model's weights and slots take what was saved under their
  // paths, when they are made if they are not yet; no other model's change. Errors: kNotFound where
  // there is none, kDataLoss, kInvalidArgument naming one of another type (from Fit, Evaluate or
  // Predict where it was not made yet).
  Status Restore(const std::string& folder);

 private:
  struct Prediction {
    std::string types;          // of the inputs, and what is computed in
    size_t number;              // the engine's
    std::vector<int64_t> rows;  // of the table that an input numbers; 0: it numbers none
  };
  // Makes the steps for batches of these types, whose components have these names.
  Status Prepare(const std::vector<mesh::TensorType>& types, const std::vector<std::string>& names);
  Status Prepare(const data::Pipeline& data);
  // Fit over what was prepared, with batches of these sizes.
  Result<History> FitOn(FitWork work, const std::set<int64_t>& sizes, const FitOptions& options);
  // It lives until kMostPredictions others have been asked for.
  Result<const Prediction*> PredictionFor(std::span<const mesh::TensorType> inputs);
  // Of a model of one output. Errors: of `call` for another.
  Status OneOutput(std::string_view call) const;
  NamedTensors Named(std::vector<mesh::Tensor> outputs) const;
  Status SendPrediction(std::span<const mesh::Tensor> inputs);
  // Of data with these components, those that the model takes.
  Result<std::vector<size_t>> InputsOf(const std::vector<std::string>& names) const;

  std::shared_ptr<nn::Layer> layer_;
  strategy::Strategy& strategy_;
  std::unique_ptr<train::Recipe> recipe_;
  std::unique_ptr<Engine> engine_;
  bool prepared_ = false;                                        // for recipe_
  std::list<Prediction> predictions_;                            // the last used last
  std::map<std::string, std::unique_ptr<data::Pipeline>> data_;  // NamedData, by name
  // By paths, for weights and slots that are not made yet.
  std::map<std::string, mesh::Tensor> restored_;
  int64_t step_ = 0;
};

}  // namespace meshtrain::trainer
