#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::losses {

Entry SparseCategoricalCrossentropy() {
  return {.name = "sparse_categorical_crossentropy",
          .about = "Labels are class numbers.",
          .options = CrossentropyOptions(),
          .one_of_classes = true};
}

}  // namespace meshtrain::manifest::losses
