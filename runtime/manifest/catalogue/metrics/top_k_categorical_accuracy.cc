#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::metrics {

Entry TopKCategoricalAccuracy() {
  return {.name = "top_k_categorical_accuracy",
          .about =
              "Labels are shares of the classes; the largest is right among the k largest "
              "predictions.",
          .options = {option::Int("k", {.least = 1},
                                  {.about = "How many of the largest predictions.",
                                   .fallback = "5",
                                   .sample = "3"}),
                      FigureNameOption("top")}};
}

}  // namespace meshtrain::manifest::metrics
