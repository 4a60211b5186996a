#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::losses {

Entry MeanAbsoluteError() {
  return {.name = "mean_absolute_error",
          .about = "The mean of absolute differences.",
          .options = {Reduction()}};
}

Entry Mae() {
  return {.name = "mae", .about = "As mean_absolute_error.", .options = {Reduction()}};
}

}  // namespace meshtrain::manifest::losses
