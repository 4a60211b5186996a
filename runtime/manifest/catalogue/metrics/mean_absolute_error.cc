#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry MeanAbsoluteError() {
  return {.name = "mean_absolute_error", .about = "The mean of absolute differences."};
}

Entry Mae() { return {.name = "mae", .about = "As mean_absolute_error."}; }

}  // namespace meshtrain::manifest::metrics
