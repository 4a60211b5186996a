#include "runtime/parameter/worker/dataset.h"

#include <algorithm>
#include <variant>

#include "runtime/data/labels.h"
#include "runtime/data/source.h"

namespace meshtrain::parameter {

using mesh::Tensor;
using mesh::TensorType;

namespace {

// Well mixed, and 0 for worker 0 (SplitMix64's finaliser: Steele, Lea & Flood 2014).
uint64_t Spread(uint64_t worker) {
  if (worker == 0) return 0;
  uint64_t z = worker * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Result<data::PipelineSpec> SpecOf(const Dataset& dataset, int worker, int workers) {
  data::PipelineSpec spec = dataset.spec;
  if (dataset.policy == ShardPolicy::kWhole) {
    for (data::Stage& stage : spec.stages) {
      if (auto* shuffle = std::get_if<data::ShuffleStage>(&stage)) {
        shuffle->seed += Spread(static_cast<uint64_t>(worker));
      }
    }
    return spec;
  }
  MT_ASSIGN_OR_RETURN(const auto source, data::OpenSource(spec.source));
  const int64_t mine = source->size() > worker ? (source->size() - 1 - worker) / workers + 1 : 0;
  if (mine == 0) {
    return InvalidArgument("dataset " + dataset.name + ": expected an element for each of " +
                           std::to_string(workers) +
                           " workers, got: " + std::to_string(source->size()));
  }
  MT_RETURN_IF_ERROR(source->Ensure(source->size()));
  data::MemoryArrays arrays;
  arrays.first = worker;
  arrays.every = workers;
  if (const auto* whole = std::get_if<data::MemoryArrays>(&spec.source.from)) {
    arrays.file = whole->file;
    arrays.first = whole->first + worker * whole->every;
    arrays.every = workers * whole->every;
  }
  for (size_t c = 0; c < source->element().size(); ++c) {
    TensorType type = source->element()[c];
    type.dims.insert(type.dims.begin(), mine);
    Tensor part(type);
    auto to = part.mutable_bytes().begin();
    for (int64_t i = 0; i < mine; ++i) {
      const auto row = source->Row(static_cast<int>(c), worker + i * workers);
      to = std::copy(row.begin(), row.end(), to);
    }
    arrays.components.push_back(std::move(part));
  }
  if (const auto* idx = std::get_if<data::IdxFiles>(&spec.source.from)) {
    arrays.file = idx->labels;
    // A pipeline over files makes labels of this type by itself, and looks whether that cuts one; a
    // pipeline over arrays takes them as they are.
    const mesh::DType stored = source->element()[1].dtype, type = data::LabelType(*idx, stored);
    for (int64_t i = worker; i < source->size(); i += workers) {
      MT_RETURN_IF_ERROR(data::CheckKept(stored, source->Row(1, i), type, i, idx->labels));
    }
    if (type != stored) {
      spec.stages.insert(spec.stages.begin(), data::MapStage{{data::Cast{type}}, 1});
    }
  }
  if (const auto* text = std::get_if<data::TextFile>(&spec.source.from)) {
    arrays.file = text->file;
    spec.stages.insert(spec.stages.begin(), data::MapStage{{data::Cast{mesh::DType::kI32}}, 1});
  }
  spec.source = {.from = std::move(arrays)};
  return spec;
}

Result<std::unique_ptr<data::Pipeline>> MakePipeline(const Dataset& dataset, int worker,
                                                     int workers) {
  MT_ASSIGN_OR_RETURN(data::PipelineSpec spec,
                      SpecOf(dataset, worker, workers).From(Origin::kInput));
  MT_ASSIGN_OR_RETURN(auto pipeline, data::Pipeline::Create(std::move(spec)));
  pipeline->Start();
  return pipeline;
}

}  // namespace meshtrain::parameter
