#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::metrics {

Entry LabelMean() {
  return {.name = "label_mean",
          .about =
              "The mean of the labels, which are as the predictions: tf.estimator's "
              "label/mean."};
}

Entry PredictionMean() {
  return {.name = "prediction_mean",
          .about =
              "The mean of the predictions, of binary_crossentropy of the probabilities that "
              "they say: tf.estimator's prediction/mean."};
}

}  // namespace meshtrain::manifest::metrics
