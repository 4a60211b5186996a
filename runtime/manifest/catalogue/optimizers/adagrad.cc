#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Adagrad() {
  return {.name = "adagrad",
          .about = "Duchi et al. 2011.",
          .options = OptimizerOptions("0.001", {FirstSum(), Epsilon()})};
}

}  // namespace meshtrain::manifest::optimizers
