#include "runtime/distribute/parameter/dataset.h"

#include <algorithm>
#include <variant>

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
  data::Arrays arrays;
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
    // A pipeline over files makes labels of this type by itself; one over arrays takes them as they
    // are.
    spec.stages.insert(spec.stages.begin(), data::MapStage{{data::Cast{idx->labels_as}}, 1});
  }
  spec.source = {.from = std::move(arrays)};
  return spec;
}

Result<std::unique_ptr<data::Pipeline>> MakePipeline(const Dataset& dataset, int worker,
                                                     int workers) {
  MT_ASSIGN_OR_RETURN(data::PipelineSpec spec, SpecOf(dataset, worker, workers));
  MT_ASSIGN_OR_RETURN(auto pipeline, data::Pipeline::Create(std::move(spec)));
  pipeline->Start();
  return pipeline;
}

}  // namespace meshtrain::parameter
