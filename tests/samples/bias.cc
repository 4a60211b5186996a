// A metric: how far predictions lie above their labels, on average.
#include "runtime/recipe/rows.h"
#include "runtime/train/measures.h"

namespace meshtrain::samples {

recipe::MetricRow BiasRow() {
  return {{.name = "bias", .about = "The mean of predictions less labels."},
          [](const std::string& name, const choice::Options&) -> train::Metric {
            return {name, [](const program::Value& labels, const program::Value& predictions,
                             const train::Loss&) {
                      return program::ReduceMean(predictions -
                                                 train::LikePredictions(labels, predictions));
                    }};
          }};
}

}  // namespace meshtrain::samples
