#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry TopKCategoricalAccuracy() {
  return {.name = "top_k_categorical_accuracy",
          .about =
              "Labels are shares of the classes; the largest is right among the five largest "
              "predictions."};
}

}  // namespace meshtrain::manifest::metrics
