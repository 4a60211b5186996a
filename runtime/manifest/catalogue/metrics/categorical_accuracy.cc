#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry CategoricalAccuracy() {
  return {.name = "categorical_accuracy", .about = "Labels are shares of the classes."};
}

}  // namespace meshtrain::manifest::metrics
