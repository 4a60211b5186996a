#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry MeanSquaredError() {
  return {.name = "mean_squared_error", .about = "The mean of squared differences."};
}

Entry Mse() { return {.name = "mse", .about = "As mean_squared_error."}; }

}  // namespace meshtrain::manifest::metrics
