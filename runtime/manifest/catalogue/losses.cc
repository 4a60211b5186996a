#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

Field Reduction() {
  return option::Word("reduction", {"mean", "sum"},
                      {.about = "What the gradient is of; the report is the mean.",
                       .fallback = "mean",
                       .sample = "sum"});
}
Entry Crossentropy(std::string_view name, std::string_view about) {
  return {.name = name,
          .about = about,
          .options = {Reduction(),
                      option::Bool("from_logits",
                                   {.about = "Whether predictions are logits, not probabilities.",
                                    .fallback = "false",
                                    .sample = "true"})}};
}
Entry Difference(std::string_view name, std::string_view about) {
  return {.name = name, .about = about, .options = {Reduction()}};
}

}  // namespace

const Catalogue& Losses() {
  static const Catalogue kLosses = {
      .noun = "loss",
      .entries = {
          Crossentropy("sparse_categorical_crossentropy", "Labels are class numbers."),
          Crossentropy("categorical_crossentropy", "Labels are shares of the classes."),
          Crossentropy("binary_crossentropy", "Labels are probabilities of one class."),
          Difference("mean_squared_error", "The mean of squared differences."),
          Difference("mean_absolute_error", "The mean of absolute differences."),
          Difference("mse", "As mean_squared_error."),
          Difference("mae", "As mean_absolute_error."),
      }};
  return kLosses;
}

const Catalogue& Metrics() {
  static const Catalogue kMetrics = {
      .noun = "metric",
      .entries = {
          {.name = "accuracy", .about = "The share that is right; of which kind, the loss says."},
          {.name = "sparse_categorical_accuracy", .about = "Labels are class numbers."},
          {.name = "categorical_accuracy", .about = "Labels are shares of the classes."},
          {.name = "binary_accuracy", .about = "Labels are probabilities of one class."},
          {.name = "mean_squared_error", .about = "The mean of squared differences."},
          {.name = "mean_absolute_error", .about = "The mean of absolute differences."},
          {.name = "mse", .about = "As mean_squared_error."},
          {.name = "mae", .about = "As mean_absolute_error."},
      }};
  return kMetrics;
}

}  // namespace meshtrain::manifest
