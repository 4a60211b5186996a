#include "runtime/train/by_name.h"

namespace meshtrain::train {

OptimizerOptions CommonOf(const Options& options, OptimizerOptions common) {
  common.learning_rate = options.Number("learning_rate", common.learning_rate);
  common.clipnorm = options.MaybeNumber("clipnorm");
  common.global_clipnorm = options.MaybeNumber("global_clipnorm");
  common.clipvalue = options.MaybeNumber("clipvalue");
  common.weight_decay = options.MaybeNumber("weight_decay");
  return common;
}

LossReduction ReductionOf(const Options& options) {
  return options.Text("reduction") == "sum" ? LossReduction::kSum : LossReduction::kMean;
}

losses::CrossentropyOptions CrossentropyOptionsOf(const Options& options) {
  return {.from_logits = options.Bool("from_logits", false), .reduction = ReductionOf(options)};
}

}  // namespace meshtrain::train
