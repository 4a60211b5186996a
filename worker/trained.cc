#include "worker/trained.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/checkpoint/index.h"
#include "runtime/checkpoint/restore.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/strategy/dataset.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/strategy.h"
#include "runtime/trainer/predict.h"

namespace meshtrain::worker {

using mesh::Tensor;

TrainedModel::TrainedModel(const trainer::JobConfig& config, manifest::Manifest manifest,
                           bool one_device)
    : config_(config), manifest_(std::move(manifest)) {
  manifest::Program& program = manifest_.program;
  int64_t devices = 1;
  for (mesh::Axis& axis : program.mesh) {
    if (one_device) axis.size = 1;
    devices *= axis.size;
  }
  if (one_device) manifest_.strategy = "Mesh";
  program.processes = 1;
  program.devices.count = devices;
}

Status TrainedModel::MakeEngine() {
  MT_ASSIGN_OR_RETURN(declared_, recipe::Declared::Create(manifest_.program));
  MT_ASSIGN_OR_RETURN(strategy_,
                      trainer::MakeMeshStrategy(config_, manifest_, *declared_, nullptr));
  engine_ = trainer::MakeMeshEngine(*strategy_, {.declare_only = true});
  return OkStatus();
}

Status TrainedModel::PlanEvaluation(data::Pipeline& data) {
  const auto plan = [&]() -> Status {
    MT_RETURN_IF_ERROR(MakeEngine());
    engine_->Compile(declared_->recipe(), trainer::TraceOf(*declared_));
    MT_RETURN_IF_ERROR(engine_->Prepare(data.BatchTypes(data.batch_size())));
    return engine_->Plan("", {}, data.batch_sizes());
  };
  MT_RETURN_IF_ERROR(plan().From(Origin::kManifest));
  parameters_ = declared_->recipe().model->parameters();
  trainer::Expect(*engine_, data);
  return OkStatus();
}

Status TrainedModel::PlanPrediction(data::Pipeline& data) {
  const auto plan = [&]() -> Status {
    MT_RETURN_IF_ERROR(MakeEngine());
    for (const int64_t size : data.batch_sizes()) {
      MT_ASSIGN_OR_RETURN(const recipe::TracedPrediction traced,
                          declared_->TracePrediction(data.BatchTypes(size)[0]));
      if (predictions_.empty()) {
        parameters_ = traced.parameters;
        for (const auto& [input, rows] : traced.prediction.rows) {
          data.ExpectIds({{data.component_names()[0], rows}});
        }
        MT_RETURN_IF_ERROR(strategy_->DeclareOnMesh(parameters_, traced.states));
      }
      MT_ASSIGN_OR_RETURN(predictions_[size],
                          engine_->AddPrediction(traced.prediction, /*whole=*/false));
    }
    return OkStatus();
  };
  return plan().From(Origin::kManifest);
}

Status TrainedModel::PlanWriting() {
  const auto plan = [&]() -> Status {
    MT_RETURN_IF_ERROR(MakeEngine());
    // As a window comes out of the manifest's pipeline.
    const auto length = manifest_.program.data.train.from.options.Int("length", 0);
    data::MemoryArrays window{.components = {Tensor({mesh::DType::kU8, {1, length}})}};
    std::memset(window.components[0].mutable_bytes().data(), 0, static_cast<size_t>(length));
    MT_ASSIGN_OR_RETURN(const auto data, data::Pipeline::Create(recipe::PredictPipeline(
                                             manifest_.program, std::move(window))));
    MT_ASSIGN_OR_RETURN(const recipe::TracedPrediction next,
                        declared_->TraceNext(data->BatchTypes(1)[0]));
    parameters_ = next.parameters;
    MT_RETURN_IF_ERROR(strategy_->DeclareOnMesh(parameters_, next.states));
    MT_ASSIGN_OR_RETURN(write_, trainer::PlanText(manifest_.program, next, *engine_));
    return OkStatus();
  };
  return plan().From(Origin::kManifest);
}

Status TrainedModel::SetWeights(const std::vector<Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    MT_RETURN_IF_ERROR(strategy_->Assign(parameters_[i], values[i]));
  }
  return OkStatus();
}

Status TrainedModel::LoadWeights(const std::string& path, std::string_view whose) {
  std::vector<mesh::NamedType> wanted;
  for (const nn::Parameter& p : parameters_) wanted.push_back({p.name(), p.type()});
  MT_ASSIGN_OR_RETURN(const std::vector<Tensor> values,
                      checkpoint::LoadWeights(path, wanted, whose));
  return SetWeights(values);
}

Result<train::Scalars> TrainedModel::Evaluate(data::Pipeline& data, std::stop_token stop) {
  strategy::PipelineBatches batches(data);
  return engine_->Evaluate(batches, manifest_.program.train.validation_steps, std::move(stop));
}

Result<std::vector<Tensor>> TrainedModel::Predict(data::Pipeline& data, std::stop_token stop) {
  MT_RETURN_IF_ERROR(strategy::BeginPass(data));
  return trainer::PredictPass(
      *engine_, data,
      [&](const data::Batch& batch) {
        return engine_->SendPrediction(predictions_.at(batch.size), {&batch.components[0], 1});
      },
      std::move(stop));
}

Result<std::string> WeightsAt(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return NotFound(path +
                    ": expected weights (a run's folder, a checkpoint or model.safetensors), "
                    "got: no such file or folder")
        .From(Origin::kInput);
  }
  if (!fs::is_directory(status)) return path;
  const auto has = [&](const std::string& name) {
    return fs::exists(fs::path(path) / name, error);
  };
  if (has(std::string(checkpoint::kIndexName))) return path;
  const std::string model = path + "/model.safetensors";
  if (has("model.safetensors")) return model;
  if (checkpoint::FindLatest(path).ok()) return path;
  const auto inside = checkpoint::FindLatest(path + "/checkpoints");
  if (inside.ok()) {
    return FailedPrecondition(path +
                              ": expected the folder of a run that has ended, with "
                              "model.safetensors, got: one without (its newest checkpoint is " +
                              inside->path + ")")
        .From(Origin::kInput);
  }
  return InvalidArgument(path +
                         ": expected a run's folder with model.safetensors, or a checkpoint with " +
                         std::string(checkpoint::kIndexName) + ", got: a folder without either")
      .From(Origin::kInput);
}

}  // namespace meshtrain::worker
