#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {
namespace {

Field Strength(std::string_view name, std::string_view about) {
  return option::Number(name, {.least = 0}, {.about = about, .fallback = "0", .sample = "0.5"});
}

}  // namespace

Entry Ftrl() {
  return {
      .name = "ftrl",
      .about = "McMahan et al. 2013.",
      .options = OptimizerOptions(
          "0.001",
          {option::Number("learning_rate_power", {.most = 0},
                          {.about = "How the rate falls with the sum of squares.",
                           .fallback = "-0.5",
                           .sample = "-0.25"}),
           FirstSum(), Strength("l1_regularization_strength", "Of the absolute value."),
           Strength("l2_regularization_strength", "Of the square."),
           Strength("l2_shrinkage_regularization_strength", "Of the square, with the gradient."),
           Strength("beta", "Added to the root of the sum of squares.")})};
}

}  // namespace meshtrain::manifest::optimizers
