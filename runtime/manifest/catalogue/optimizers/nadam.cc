#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Nadam() {
  return {.name = "nadam",
          .about = "Adam with Nesterov's momentum.",
          .options = OptimizerOptions("0.001", Betas(true))};
}

}  // namespace meshtrain::manifest::optimizers
