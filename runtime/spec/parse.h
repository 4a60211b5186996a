// The parts of a program's text, read one by one. Mistakes go to the problems; what comes back is
// then incomplete.
#pragma once

#include <string>

#include "runtime/spec/reader.h"
#include "runtime/spec/spec.h"

namespace meshtrain::spec {

ModelSpec ParseModel(Problems& problems, const Node& node, const std::string& path);
DataSpec ParseData(Problems& problems, const Node& node, const std::string& path, int64_t seed);
train::Loss ParseLossSpec(Problems& problems, const Node& node, const std::string& path);
OptimizerSpec ParseOptimizer(Problems& problems, const Node& node, const std::string& path);

ParameterServerSpec ParseParameterServer(Problems& problems, const Node& node,
                                         const std::string& path);
MirroredSpec ParseMirrored(Problems& problems, const Node& node, const std::string& path);
MultiWorkerMirroredSpec ParseMultiWorkerMirrored(Problems& problems, const Node& node,
                                                 const std::string& path);

// What can be checked with no data: axes, devices, divisibility, layout rules against the model's
// paths and ranks.
void CheckProgram(Problems& problems, const ProgramSpec& spec, const ReadOptions& options);

// What the strategy means for the program: its mesh, where it makes one. Wrong names and
// combinations are problems.
void ApplyStrategy(Problems& problems, Place place, const ReadOptions& options, Manifest* manifest);

// A weight that a layer will make.
struct WeightShape {
  std::string path;
  int rank = 0;
};
std::vector<WeightShape> WeightsOf(const LayerSpec& layer);

// The layouts that inputs have: given, or dimension 0 over the axis `batch`. `rank` < 0: not known.
nn::LayoutSpecs InputSpecs(const ProgramSpec& spec, const std::string& input, int rank);

}  // namespace meshtrain::spec
