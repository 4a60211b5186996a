#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Lion() {
  return {.name = "lion",
          .about = "Chen et al. 2023.",
          .options = OptimizerOptions("0.001", Betas(false))};
}

}  // namespace meshtrain::manifest::optimizers
