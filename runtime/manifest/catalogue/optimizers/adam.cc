#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry Adam() {
  return {
      .name = "adam", .about = "Keras' Adam.", .options = OptimizerOptions("0.001", AdamFields())};
}

Entry AdamW() {
  return {.name = "adamw",
          .about = "Adam with weights that decay.",
          .options = OptimizerOptions("0.001", AdamFields())};
}

}  // namespace meshtrain::manifest::optimizers
