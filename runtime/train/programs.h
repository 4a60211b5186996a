// From a model, a loss and an optimizer to the programs that a session runs.
//
//   init        no inputs; its updates give every state its initial value
//   train_step  inputs: the batch's components, by name; outputs loss, and of each head its own
//               loss, where its output has a name, and its metrics (Head::FigureName); updates the
//               states
//   eval_step   the same inputs and outputs without updates (dropout passes on), states only read
//
// All are for one batch size. Call BuildPrograms again with the same Recipe for another (the short
// last batch): weights and slots are the same variables, and init is the same program.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/nn/layer.h"
#include "runtime/nn/layout_map.h"
#include "runtime/program/program.h"
#include "runtime/train/loss.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::train {

using program::Program;
using program::TensorType;

inline constexpr std::string_view kInputName = "x";
inline constexpr std::string_view kLossName = "loss";

// Each part's ops are recorded and planned anew.
inline constexpr int64_t kMostParts = 64;

struct Recipe {
  // A batch's components, in their order.
  std::vector<std::string> components = {std::string(kInputName), std::string(kLabelName)};
  // Those that the model takes, in this order; none: all but the labels of the heads.
  std::vector<std::string> inputs = {};
  std::shared_ptr<nn::Layer> model;
  // One for each of the model's outputs. The gradient is of the sum of their losses, each times its
  // weight, and of the weights' penalties; the figure `loss` is that sum, of the losses' means.
  std::vector<Head> heads = std::vector<Head>(1);
  std::shared_ptr<Optimizer> optimizer;
  nn::LayoutMap layouts;            // rules for the weights that have no layout of their own
  int64_t seed = nn::RandomSeed();  // of initial values and dropout
  // Each batch is computed in so many parts, one after the other, and the weights change once, by
  // the gradient of the whole batch: part i of n has the examples i, i + n, i + 2n, ... Less memory
  // is used at once, and all that a step gives and changes is as without, but for rounding and what
  // layers themselves take from the examples of one call: batch normalisation's statistics are a
  // part's, and dropout draws anew for each. From 1 to kMostParts.
  int64_t accumulate = 1;
  // bf16 or f16: what layers compute in, while weights, what they predict, loss and optimizer stay
  // f32 (nn::CallContext::compute).
  std::optional<program::DType> compute;
  // Devices sum gradients in `compute` too, and not in f32 (nn::CallContext::narrow_sums).
  bool narrow_sums = false;
  // The gradient is computed of so many times the loss, and divided by as much before anything else
  // sees it: what f16 would round to 0 on the way back is kept. Above 0.
  double loss_scale = 1;
  // Layers whose values are not kept for the way back but computed again there, which takes less
  // memory and more time: rules by layer path (nn::PathScopes), of each scope its layers together.
  // What they read from others is kept.
  std::vector<std::string> recompute;
  // Counts training steps for dropout, each part as one; a state only where a layer reads it.
  Parameter step{
      "step", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(), {.trainable = false}};
};

struct Programs {
  Program init;
  Program train_step;
  Program eval_step;
  std::vector<Parameter>
      parameters;                // the model's, in the order of its calls, layout rules applied
  std::vector<Parameter> slots;  // the optimizer's, and `step` where it is used
  std::vector<std::string> components;  // the recipe's: of the steps' inputs
  // Loss::Classes: what labels must be, by component; of two losses the smaller number.
  std::map<std::string, int64_t> classes;
  // Components that are ids as they stand, and the rows of the smallest table that they number.
  std::map<std::string, int64_t> rows;
  // Of the outputs those that are sums (Metric::finish), with a zero for each sum.
  std::vector<FigureSums> summed;

  // Parameters, then slots: every state there is.
  std::vector<Parameter> States() const;
  // "hidden_1.kernel  f32[784,700]  {unsharded, model}", a line each.
  std::string Summary() const;
};

// Errors: kInvalidArgument: the trace's first (with path and source line), heads that are not those
// of the model's outputs, labels that do not fit a loss, or a layout rule that fits nothing.
// `types`: of the components, in their order.
Result<Programs> BuildPrograms(const Recipe& recipe, std::span<const TensorType> types);
// Of batches of two components.
inline Result<Programs> BuildPrograms(const Recipe& recipe, const TensorType& x,
                                      const TensorType& y) {
  const TensorType types[] = {x, y};
  return BuildPrograms(recipe, types);
}
// The components that the model takes, as places in recipe.components. Errors: kInvalidArgument for
// a name that no component has.
Result<std::vector<size_t>> ModelInputs(const Recipe& recipe);

// The layout of an optimizer's slot whose update is shared out over the devices that hold copies of
// the weight: `slot`, the weight's own layout, with dimension 0 split over those axes of the
// batch's dimension 0 that it does not use. The gradient is then reduced to shards instead of
// copies, each device updates its part, and the new weight is gathered: the bytes on the way stay
// the same, the work and the slots' memory become a share. (Xu et al. 2020, "Automatic
// cross-replica sharding of weight update"; stage 1 of ZeRO, Rajbhandari et al. 2020.)
// `slot` itself where dimension 0 is split already, would not be even, or holds less than
// kSharedUpdateBytes.
inline constexpr int64_t kSharedUpdateBytes = int64_t{64} << 10;
mesh::Layout SharedUpdateLayout(const mesh::Layout& slot, const TensorType& type,
                                const mesh::Layout& batch);

// The program whose updates give `states` their initial values.
Result<Program> BuildInit(const std::vector<Parameter>& states, int64_t seed);

}  // namespace meshtrain::train
