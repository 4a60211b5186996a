#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
Entry Dense() {
  return {
      .name = "dense",
      .about = "activation(x @ kernel + bias).",
      .options =
          {
              field::Required(option::Int(
                  "units", {.least = 1},
                  {.about = "The size of the last dimension of its output.", .sample = "12"})),
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
                             .sample = "[unsharded, batch]"}),
              option::Texts(
                  "bias_layout",
                  {.about = "The bias's layout.", .fallback = "the rules'", .sample = "[batch]"}),
          },
      .weights = [](const Options& options) {
        std::vector<std::pair<std::string, int>> weights = {{"kernel", 2}};
        if (options.Bool("use_bias", true)) weights.emplace_back("bias", 1);
        return weights;
      }};
}

}  // namespace meshtrain::manifest::layers
