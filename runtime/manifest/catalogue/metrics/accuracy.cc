#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry Accuracy() {
  return {.name = "accuracy", .about = "The share that is right; of which kind, the loss says."};
}

}  // namespace meshtrain::manifest::metrics
