#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry BinaryAccuracy() {
  return {.name = "binary_accuracy", .about = "Labels are probabilities of one class."};
}

}  // namespace meshtrain::manifest::metrics
