// Jobs that several tests run: the guide's Dense(1), an MLP on drawn digits; and what a single
// process makes of them.
#pragma once

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/pipeline.h"
#include "runtime/execute/loaded_step.h"
#include "runtime/execute/session.h"
#include "runtime/nn/layers.h"
#include "runtime/nn/model.h"
#include "runtime/parameter/chief/coordinator.h"
#include "runtime/sharding/sharding.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/programs.h"

namespace meshtrain::parameter {

struct GuideSeries {
  double w0 = 0;
  std::vector<double> losses;
};
inline GuideSeries ReadGuide() {
  std::ifstream file(MT_TESTDATA "/guide/guide_series.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  return {json.at("w0").get<double>(), json.at("printed_in_text").get<std::vector<double>>()};
}

// Dense(1) with an L2 of 1e-4 on its kernel, binary cross-entropy from logits, SGD 0.01.
inline train::Recipe GuideRecipe(double w0) {
  train::Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Dense(1, {.name = "dense",
                    .kernel_initializer = nn::Initializer::Constant(w0),
                    .kernel_regularizer = nn::L2(1e-4)}));
  recipe.heads[0].loss = train::losses::BinaryCrossentropy({.from_logits = true});
  recipe.optimizer = train::Sgd();
  return recipe;
}
inline mesh::TensorType F32(mesh::Dims dims) { return {mesh::DType::kF32, std::move(dims)}; }

// ([1.], [1.]) for ever, in batches of 5.
inline data::PipelineSpec GuideData() {
  const mesh::Tensor ones = mesh::Tensor::Of<float>({1000, 1}, std::vector<float>(1000, 1.0f));
  return {.source = {.from = data::MemoryArrays{{ones, ones}}}, .stages = {data::BatchStage{5}}};
}

// 784 -> hidden (relu) -> 10 on drawn digits.
inline train::Recipe DigitsRecipe(std::shared_ptr<train::Optimizer> optimizer,
                                  int64_t hidden = 64) {
  train::Recipe recipe;
  recipe.model = std::make_shared<nn::Sequential>(
      nn::Flatten(), nn::Dense(hidden, {.name = "hidden", .activation = nn::ActivationKind::kRelu}),
      nn::Dense(10, {.name = "logits"}));
  recipe.heads[0].loss = train::losses::SparseCategoricalCrossentropy({.from_logits = true});
  recipe.optimizer = std::move(optimizer);
  recipe.heads[0].metrics = {train::metrics::Accuracy()};
  recipe.seed = 11;
  return recipe;
}
inline data::PipelineSpec DigitsData(int64_t batch, int64_t take = 2000, bool shuffle = true) {
  data::PipelineSpec spec{
      .source = {.from = data::IdxFiles{MT_TESTDATA "/mlp/digits5120-images-idx3-ubyte.gz",
                                        MT_TESTDATA "/mlp/digits5120-labels-idx1-ubyte.gz"},
                 .take = take}};
  spec.stages.push_back(data::MapStage{{data::Scale{1.0 / 255}}});
  if (shuffle) spec.stages.push_back(data::ShuffleStage{.buffer = take, .seed = 5});
  spec.stages.push_back(data::BatchStage{.size = batch, .drop_remainder = true});
  return spec;
}

// The losses of `steps` training steps in one process, on one device.
inline Result<std::vector<double>> TrainAlone(
    const train::Recipe& recipe, const data::PipelineSpec& data, const mesh::TensorType& x,
    const mesh::TensorType& y, int steps, std::map<std::string, mesh::Tensor>* states = nullptr) {
  MT_ASSIGN_OR_RETURN(const train::Programs programs, train::BuildPrograms(recipe, x, y));
  MT_ASSIGN_OR_RETURN(const auto session, execute::Session::Create({.threads = 1}));
  std::map<std::string, program::Variable> variables;
  for (const Parameter& p : programs.States()) {
    MT_RETURN_IF_ERROR(
        session->Declare(p, mesh::Layout::Replicated(mesh::Mesh(), p.type().rank())));
    variables.emplace(p.name(), p);
  }
  const auto load = [&](const Program& program) {
    std::vector<program::Variable> list;
    for (const program::State& s : program.states) list.push_back(variables.at(s.name));
    return session->Load(program, mesh::Mesh(), list, {});
  };
  MT_ASSIGN_OR_RETURN(const auto init, load(programs.init));
  MT_RETURN_IF_ERROR(init->Run());
  MT_ASSIGN_OR_RETURN(const auto step, load(programs.train_step));
  MT_ASSIGN_OR_RETURN(const auto pipeline, data::Pipeline::Create(data));
  std::vector<double> losses;
  while (static_cast<int>(losses.size()) < steps) {
    MT_ASSIGN_OR_RETURN(const auto batch, pipeline->Next());
    if (!batch) continue;
    for (size_t i = 0; i < programs.train_step.inputs.size(); ++i) {
      MT_RETURN_IF_ERROR(step->Feed(i, (*batch)[programs.train_step.inputs[i].name]));
    }
    MT_RETURN_IF_ERROR(step->Run());
    MT_ASSIGN_OR_RETURN(const double loss, step->FetchNumber(0));
    losses.push_back(loss);
  }
  if (states != nullptr) {
    for (const auto& [name, variable] : variables) {
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, session->ReadToHost(variable));
      states->emplace(name, std::move(value));
    }
  }
  return losses;
}

inline double LossOf(const Outputs& outputs) {
  for (const auto& [name, value] : outputs) {
    if (name == train::kLossName) return value.Item();
  }
  return std::nan("");
}

}  // namespace meshtrain::parameter
