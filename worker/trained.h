// A model that was trained, of a manifest: on the manifest's mesh, all of it in this process, so
// that its layouts hold. What evaluators do with each checkpoint, `meshtrain evaluate` with one,
// and what `meshtrain predict` does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/mesh/tensor.h"
#include "runtime/recipe/recipe.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/figures.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/config.h"

namespace meshtrain::worker {

// One thread.
class TrainedModel {
 public:
  // `one_device`: every axis of the mesh has one device, and nothing is split. `config` outlives
  // it.
  TrainedModel(const trainer::JobConfig& config, manifest::Manifest manifest,
               bool one_device = false);

  // Before the rest, one of these: the steps for all batches of `data`. Errors: of kManifest, with
  // the place: a layer that does not fit the data, a mesh that cannot be made.
  Status PlanEvaluation(data::Pipeline& data);
  Status PlanPrediction(data::Pipeline& data);

  // For Write.
  Status PlanWriting();

  // Of the model's weights, in the order in which SetWeights takes their values.
  const std::vector<nn::Parameter>& parameters() const { return parameters_; }
  Status SetWeights(const std::vector<mesh::Tensor>& values);
  // From a file or a checkpoint. Errors: checkpoint::LoadWeights', whose `whose` this is.
  Status LoadWeights(const std::string& path, std::string_view whose = "");

  // Means over the examples of a pass, or of the manifest's `validation_steps`, as validation has
  // them.
  Result<train::Scalars> Evaluate(data::Pipeline& data, std::stop_token stop);
  // What the model predicts for each example, in their order: a tensor for each of
  // manifest::Outputs, in theirs.
  Result<std::vector<mesh::Tensor>> Predict(data::Pipeline& data, std::stop_token stop);

  // What the manifest's `generate` asks for.
  Result<std::string> Write(std::stop_token stop) { return write_(std::move(stop)); }

  const manifest::Manifest& manifest() const { return manifest_; }

 private:
  Status MakeEngine();

  const trainer::JobConfig& config_;
  manifest::Manifest manifest_;
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<strategy::MeshStrategy> strategy_;
  std::unique_ptr<trainer::Engine> engine_;
  std::vector<nn::Parameter> parameters_;
  std::map<int64_t, size_t> predictions_;  // by batch size: the engine's number
  trainer::WriteText write_;
};

// The weights that `path` stands for, as checkpoint::LoadWeights takes them: a safetensors file, a
// checkpoint, a folder of checkpoints, or the folder of a run, whose model.safetensors counts.
// Errors, of kInput: kNotFound; kFailedPrecondition for the folder of a run that has left no model
// yet; kInvalidArgument for another folder.
Result<std::string> WeightsAt(const std::string& path);

}  // namespace meshtrain::worker
