#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::losses {

Entry BinaryCrossentropy() {
  return {.name = "binary_crossentropy",
          .about = "Labels are probabilities of one class.",
          .options = CrossentropyOptions()};
}

}  // namespace meshtrain::manifest::losses
