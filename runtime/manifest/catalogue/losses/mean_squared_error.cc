#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::losses {

Entry MeanSquaredError() {
  return {.name = "mean_squared_error",
          .about = "The mean of squared differences.",
          .options = {Reduction()}};
}

Entry Mse() { return {.name = "mse", .about = "As mean_squared_error.", .options = {Reduction()}}; }

}  // namespace meshtrain::manifest::losses
