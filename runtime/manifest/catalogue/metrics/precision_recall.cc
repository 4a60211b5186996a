#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::metrics {
namespace {

std::vector<Field> KindOptions() {
  return {ClassOption(),
          option::Number("threshold", {.least = 0, .most = 1},
                         {.about = "What the probability is above of an example that is said to "
                                   "be positive.",
                          .fallback = "0.5; with class, that the class is predicted by the "
                                      "largest number",
                          .sample = "0.25",
                          .context = "{class: 1}"}),
          FigureNameOption("of_ones", "{class: 1}")};
}

}  // namespace

Entry Precision() {
  return {.name = "precision",
          .about =
              "Of the examples that are said to be positive, the share that is; 0 where none "
              "is said to be.",
          .options = KindOptions()};
}

Entry Recall() {
  return {.name = "recall",
          .about = "Of the positive examples, the share that is said to be; 0 where there is none.",
          .options = KindOptions()};
}

}  // namespace meshtrain::manifest::metrics
