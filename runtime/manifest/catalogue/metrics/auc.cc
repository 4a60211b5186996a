#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::metrics {
namespace {

std::vector<Field> AreaOptions() {
  return {ClassOption(),
          option::Int("num_thresholds", {.least = 2, .most = 10000},
                      {.about = "Points of the curve, at probabilities that are evenly apart.",
                       .fallback = "200",
                       .sample = "50",
                       .context = "{class: 1}"}),
          FigureNameOption("area", "{class: 1}")};
}

}  // namespace

Entry Auc() {
  return {.name = "auc",
          .about =
              "The area under the ROC curve: how often a positive example has a higher "
              "probability than a negative one. 0 without one of either.",
          .options = AreaOptions()};
}

Entry PrAuc() {
  return {.name = "pr_auc",
          .about =
              "The area under the curve of precision over recall. 0 without a positive "
              "example.",
          .options = AreaOptions()};
}

}  // namespace meshtrain::manifest::metrics
