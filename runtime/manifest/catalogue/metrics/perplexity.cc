#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::metrics {

Entry Perplexity() {
  return {.name = "perplexity",
          .about =
              "e to the mean of the loss over the examples, and positions of a sequence; of a "
              "loss of classes of which one is right.",
          .options = {FigureNameOption("surprise")}};
}

}  // namespace meshtrain::manifest::metrics
