#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Adamax() {
  return {.name = "adamax",
          .about = "Adam with the largest gradient.",
          .options = OptimizerOptions("0.001", Betas(true))};
}

}  // namespace meshtrain::manifest::optimizers
