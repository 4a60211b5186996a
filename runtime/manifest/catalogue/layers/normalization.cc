#include <utility>

#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
namespace {

Field NormEpsilon(std::string_view fallback) {
  return option::Number(
      "epsilon", {.above = 0},
      {.about = "Added to what the root is taken of.", .fallback = fallback, .sample = "0.5"});
}
Field Axes() {
  return option::Ints("axis", {.about = "The dimensions that are normalised together.",
                               .fallback = "[-1]",
                               .sample = "[1, 2]"});
}

constexpr std::string_view kLayout = "[batch]";

// `own`, and then what every layer takes that centres and scales.
std::vector<Field> WithCenterAndScale(std::vector<Field> own) {
  for (Field& field : std::vector<Field>{
           NormEpsilon("1e-3"),
           option::Bool("center",
                        {.about = "Whether beta is added.", .fallback = "true", .sample = "false"}),
           option::Bool(
               "scale",
               {.about = "Whether gamma multiplies.", .fallback = "true", .sample = "false"}),
           option::OneOf("beta_initializer", Initializers(),
                         {.about = "Beta's first values.", .fallback = "zeros", .sample = "ones"}),
           option::OneOf("gamma_initializer", Initializers(),
                         {.about = "Gamma's first values.", .fallback = "ones", .sample = "zeros"}),
           RegularizerOption("beta_regularizer", "Added to the loss for beta."),
           RegularizerOption("gamma_regularizer", "Added to the loss for gamma."),
           LayoutOption("beta_layout", "Beta's layout. It goes before `layout.rules`.", kLayout),
           LayoutOption("gamma_layout", "Gamma's layout, likewise.", kLayout)}) {
    own.push_back(std::move(field));
  }
  return own;
}

using Weights = std::vector<std::pair<std::string, int>>;

Weights GammaAndBeta(const Options& options, int rank) {
  Weights weights;
  if (options.Bool("scale", true)) weights.emplace_back("gamma", rank);
  if (options.Bool("center", true)) weights.emplace_back("beta", rank);
  return weights;
}
int RankOf(const Options& options) {
  const auto axes = options.Ints("axis");
  return axes ? static_cast<int>(axes->size()) : 1;
}

}  // namespace

Entry BatchNormalization() {
  return {
      .name = "batch_normalization",
      .about =
          "Each channel less the batch's mean, over its deviation, times gamma plus beta; "
          "outside training by moving averages of both.",
      .options = WithCenterAndScale(
          {option::Int(
               "axis", {},
               {.about = "The dimension of the channels.", .fallback = "-1", .sample = "1"}),
           option::Number("momentum", {.least = 0, .most = 1},
                          {.about = "How much of the moving averages a step keeps.",
                           .fallback = "0.99",
                           .sample = "0.5"}),
           option::OneOf(
               "moving_mean_initializer", Initializers(),
               {.about = "The moving mean's first values.", .fallback = "zeros", .sample = "ones"}),
           option::OneOf("moving_variance_initializer", Initializers(),
                         {.about = "The moving variance's first values.",
                          .fallback = "ones",
                          .sample = "zeros"}),
           LayoutOption("moving_mean_layout", "The moving mean's layout.", kLayout),
           LayoutOption("moving_variance_layout", "The moving variance's layout.", kLayout)}),
      .weights = [](const Options& options) {
        Weights weights = GammaAndBeta(options, 1);
        weights.emplace_back("moving_mean", 1);
        weights.emplace_back("moving_variance", 1);
        return weights;
      }};
}

Entry LayerNormalization() {
  return {.name = "layer_normalization",
          .about = "Each example less its mean, over its deviation, times gamma plus beta.",
          .options = WithCenterAndScale({Axes()}),
          .weights = [](const Options& options) { return GammaAndBeta(options, RankOf(options)); }};
}

Entry GroupNormalization() {
  return {.name = "group_normalization",
          .about =
              "Groups of an example's channels, each less its mean, over its deviation, times "
              "gamma plus beta.",
          .options = WithCenterAndScale({field::Required(
              option::Int("groups", {.least = -1, .not_zero = true},
                          {.about = "How many groups; -1: each channel is one.", .sample = "4"}))}),
          .weights = [](const Options& options) { return GammaAndBeta(options, 1); }};
}

Entry RmsNormalization() {
  return {
      .name = "rms_normalization",
      .about = "Each example over the root of the mean of its squares, times `scale`.",
      .options = {Axes(), NormEpsilon("1e-6"),
                  LayoutOption("scale_layout",
                               "The layout of `scale`. It goes before `layout.rules`.", kLayout)},
      .weights = [](const Options& options) {
        return Weights{{"scale", RankOf(options)}};
      }};
}

}  // namespace meshtrain::manifest::layers
