#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry SparseCategoricalAccuracy() {
  return {.name = "sparse_categorical_accuracy", .about = "Labels are class numbers."};
}

}  // namespace meshtrain::manifest::metrics
