#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
namespace {

template <int kSpatial>
Entry ConvOf(std::string_view name, std::string_view about) {
  return {
      .name = name,
      .about = about,
      .options =
          {
              field::Required(option::Int("filters", {.least = 1},
                                          {.about = "The channels of its output.", .sample = "4"})),
              field::Required(option::Ints(
                  "kernel_size",
                  {.about = "The window's size in each spatial dimension; one number is for all.",
                   .sample = "[3]"})),
              option::Ints("strides", {.about = "The steps of the window, likewise.",
                                       .fallback = "[1]",
                                       .sample = "[2]"}),
              option::Word("padding", {"valid", "same"},
                           {.about = "Whether windows lie inside, or the output has as many "
                                     "positions as strides fit into the input.",
                            .fallback = "valid",
                            .sample = "same"}),
              option::Ints("dilation_rate",
                           {.about = "The distance between the window's taps, as `strides`.",
                            .fallback = "[1]",
                            .sample = "[2]"}),
              option::Int("groups", {.least = 1},
                          {.about = "Groups of channels with filters of their own.",
                           .fallback = "1",
                           .sample = "2"}),
              ActivationOption({.about = "What is done to each output.",
                                .fallback = "linear",
                                .sample = "gelu"}),
              option::Bool(
                  "use_bias",
                  {.about = "Whether there is a bias.", .fallback = "true", .sample = "false"}),
              option::OneOf("kernel_initializer", Initializers(),
                            {.about = "The kernel's first values.",
                             .fallback = "glorot_uniform",
                             .sample = "he_normal"}),
              option::OneOf(
                  "bias_initializer", Initializers(),
                  {.about = "The bias's first values.", .fallback = "zeros", .sample = "ones"}),
              RegularizerOption("kernel_regularizer", "Added to the loss for the kernel."),
              RegularizerOption("bias_regularizer", "Added to the loss for the bias."),
              option::Texts("kernel_layout",
                            {.about = "The kernel's layout: an axis of the mesh, or unsharded, for "
                                      "each dimension. It goes before `layout.rules`.",
                             .fallback = "the rules'",
                             .sample = kSpatial == 1   ? "[unsharded, unsharded, batch]"
                                       : kSpatial == 2 ? "[unsharded, unsharded, unsharded, batch]"
                                                       : "[unsharded, unsharded, unsharded, "
                                                         "unsharded, batch]"}),
              option::Texts(
                  "bias_layout",
                  {.about = "The bias's layout.", .fallback = "the rules'", .sample = "[batch]"}),
          },
      .weights = [](const Options& options) {
        std::vector<std::pair<std::string, int>> weights = {{"kernel", kSpatial + 2}};
        if (options.Bool("use_bias", true)) weights.emplace_back("bias", 1);
        return weights;
      }};
}

}  // namespace

Entry Conv1d() {
  return ConvOf<1>("conv_1d", "activation(conv(x, kernel) + bias) of [length, channels].");
}
Entry Conv2d() {
  return ConvOf<2>("conv_2d", "activation(conv(x, kernel) + bias) of [height, width, channels].");
}
Entry Conv3d() {
  return ConvOf<3>("conv_3d",
                   "activation(conv(x, kernel) + bias) of [depth, height, width, channels].");
}

}  // namespace meshtrain::manifest::layers
