#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Rmsprop() {
  return {.name = "rmsprop",
          .about = "Hinton's RMSprop.",
          .options = OptimizerOptions(
              "0.001",
              {Beta("rho", "0.9"), Momentum(), Epsilon(),
               option::Bool("centered", {.about = "Whether the variance counts, not the square.",
                                         .fallback = "false",
                                         .sample = "true"})})};
}

}  // namespace meshtrain::manifest::optimizers
