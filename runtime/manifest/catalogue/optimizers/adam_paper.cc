#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::optimizers {

Entry AdamPaper() {
  return {.name = "adam_paper",
          .about = "Kingma & Ba 2014, as DTensor's tutorial writes it.",
          .options = OptimizerOptions("0.001", Betas(true))};
}

}  // namespace meshtrain::manifest::optimizers
