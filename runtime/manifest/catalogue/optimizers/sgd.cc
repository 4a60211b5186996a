#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Sgd() {
  return {.name = "sgd",
          .about = "Gradient descent.",
          .options = OptimizerOptions(
              "0.01",
              {Momentum(), option::Bool("nesterov", {.about = "Whether the momentum is Nesterov's.",
                                                     .fallback = "false",
                                                     .sample = "true",
                                                     .context = "{momentum: 0.5}"})})};
}

}  // namespace meshtrain::manifest::optimizers
