#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::losses {

Entry CategoricalCrossentropy() {
  return {.name = "categorical_crossentropy",
          .about = "Labels are shares of the classes.",
          .options = CrossentropyOptions(),
          .one_of_classes = true};
}

}  // namespace meshtrain::manifest::losses
