// What a manifest chooses by name, made of the options that it gives. The maker of an optimizer, a
// loss, a metric stands in its own file, as train::by_name::OPTIMIZER,
// train::losses::by_name::LOSS, train::metrics::by_name::METRIC; its row
// (manifest/catalogue/rows.h) declares it and runtime/recipe calls it.
#pragma once

#include <memory>
#include <string>

#include "runtime/choice/choice.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using choice::Options;

// The options hold their rows' bounds.
using MakeOptimizer = std::shared_ptr<Optimizer> (*)(const Options& options);
using MakeLoss = Loss (*)(const Options& options);
using MakeMetric = Metric (*)(const std::string& name, const Options& options);

// What every optimizer takes; what is not given is as in `common`.
OptimizerOptions CommonOf(const Options& options, OptimizerOptions common);
// "reduction".
LossReduction ReductionOf(const Options& options);
losses::CrossentropyOptions CrossentropyOptionsOf(const Options& options);

}  // namespace meshtrain::train
