#include "runtime/parameter/worker/dataset.h"

#include <string>
#include <variant>

namespace meshtrain::parameter {

namespace {

// Well mixed, and 0 for worker 0 (SplitMix64's finaliser: Steele, Lea & Flood 2014).
uint64_t Spread(uint64_t worker) {
  if (worker == 0) return 0;
  uint64_t z = worker * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// How many of the dataset's examples the worker goes through.
int64_t ShareOf(const Dataset& dataset, int worker, int workers) {
  if (dataset.policy == ShardPolicy::kWhole) return dataset.examples;
  return (dataset.examples - worker + workers - 1) / workers;
}

}  // namespace

data::PipelineSpec SpecOf(const Dataset& dataset, int worker, int workers) {
  data::PipelineSpec spec = dataset.spec;
  if (dataset.policy == ShardPolicy::kWhole) {
    for (data::Stage& stage : spec.stages) {
      if (auto* shuffle = std::get_if<data::ShuffleStage>(&stage)) {
        shuffle->seed += Spread(static_cast<uint64_t>(worker));
      }
      if (auto* map = std::get_if<data::MapStage>(&stage)) {
        map->seed += Spread(static_cast<uint64_t>(worker));
      }
    }
    return spec;
  }
  // Of what may be a part already.
  spec.source.first += worker * spec.source.every;
  spec.source.every *= workers;
  return spec;
}

Result<std::unique_ptr<data::Pipeline>> MakePipeline(const Dataset& dataset, int worker,
                                                     int workers) {
  const std::string where = "dataset " + dataset.name;
  auto pipeline = data::Pipeline::Create(SpecOf(dataset, worker, workers));
  if (!pipeline.ok()) return pipeline.status().At(where);
  const int64_t expected = ShareOf(dataset, worker, workers);
  if (const int64_t got = (*pipeline)->examples(); dataset.examples > 0 && got != expected) {
    return InvalidArgument(where + ": " + (*pipeline)->file() + ": expected " +
                           std::to_string(expected) + " examples, as the chief's copy has, got: " +
                           std::to_string(got) + " (each process needs the same files)")
        .From(Origin::kInput);
  }
  (*pipeline)->Start();
  return pipeline;
}

}  // namespace meshtrain::parameter
