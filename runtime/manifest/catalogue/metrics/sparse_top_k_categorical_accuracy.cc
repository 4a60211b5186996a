#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry SparseTopKCategoricalAccuracy() {
  return {.name = "sparse_top_k_categorical_accuracy",
          .about = "Labels are class numbers, right among the five largest predictions."};
}

}  // namespace meshtrain::manifest::metrics
