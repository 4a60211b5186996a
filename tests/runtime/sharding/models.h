// Programs that the sharding tests partition.
#pragma once

#include <string>
#include <vector>

#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"

namespace meshtrain::sharding {

struct MlpSizes {
  int64_t batch = 128;
  std::vector<int64_t> widths = {784, 700, 500, 10};
  program::DType dtype = program::DType::kF32;
};

// One training step: inputs x and y, states <layer>.kernel, <layer>.bias, their Adam slots .m and
// .v, and t; outputs loss and accuracy. Slots are assigned, then read, as the reference tutorial's
// optimizer does.
program::Program MlpTrainStep(const MlpSizes& sizes = {});

// Names of the layers: hidden_1, hidden_2, ..., logits.
std::vector<std::string> MlpLayers(const MlpSizes& sizes = {});

// Gives `kernel` to the layer's kernel and its slots, and what is left of it to the bias.
void GiveLayer(Given& given, const std::string& layer, const Layout& kernel);

// "all_reduce {*, *} sum(batch) -> {*, *} f32[784,700]", one line for each collective and local cut
// of the program.
std::string MovesText(const Partitioned& partitioned);

// Runs the step whole and on every device of the mesh (tests/support/interpreter/interpreter.h),
// with the same made-up numbers: the largest relative difference of any output or state. Classes
// and labels stay small and whole.
Result<double> DifferenceFromUnsharded(const program::Program& program,
                                       const Partitioned& partitioned, uint64_t seed = 0);

}  // namespace meshtrain::sharding
