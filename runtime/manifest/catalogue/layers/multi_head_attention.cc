#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {

Entry MultiHeadAttention() {
  return {
      .name = "multi_head_attention",
      .about =
          "Self-attention over a sequence [N, T, D]: for each position a weighted sum of values of "
          "all positions, in several heads. Its weights are query, key, value and output. In a "
          "graph a second of its `inputs` may be a mask [N, T]: positions where it is 0 or false "
          "have no weight.",
      .options =
          {field::Required(option::Int("num_heads", {.least = 1},
                                       {.about = "The number of heads.", .sample = "4"})),
           option::Int("num_key_value_heads", {.least = 1},
                       {.about = "Heads of keys and values; each serves as many of the others.",
                        .fallback = "num_heads",
                        .sample = "2",
                        .context = "{num_heads: 4}"}),
           option::Int(
               "key_dim", {.least = 1},
               {.about = "The size of a head.", .fallback = "D / num_heads", .sample = "3"}),
           option::Bool("use_causal_mask",
                        {.about = "Whether positions after a position have no weight for it.",
                         .fallback = "false",
                         .sample = "true"}),
           option::Number("rope_max_wavelength", {.above = 0},
                          {.about = "Queries and keys are turned by their position, the slowest "
                                    "pair with about this wavelength; 10000 is usual.",
                           .fallback = "they are not turned",
                           .sample = "10000",
                           .context = "{key_dim: 2}"}),
           option::Number("dropout", {.least = 0, .below = 1},
                          {.about = "The share of the weights that are dropped in training, drawn "
                                    "anew in each step.",
                           .fallback = "0",
                           .sample = "0.25"}),
           option::Int("seed", {},
                       {.about = "What the draws of `dropout` follow from.",
                        .fallback = "the program's seed and the layer's path",
                        .sample = "9",
                        .context = "{dropout: 0.25}"}),
           option::Bool(
               "use_bias",
               {.about = "Whether the four have a bias.", .fallback = "true", .sample = "false"}),
           option::OneOf("kernel_initializer", Initializers(),
                         {.about = "The kernels' first values.",
                          .fallback = "glorot_uniform",
                          .sample = "he_normal"}),
           option::OneOf(
               "bias_initializer", Initializers(),
               {.about = "The biases' first values.", .fallback = "zeros", .sample = "ones"}),
           RegularizerOption("kernel_regularizer", "Added to the loss for each kernel."),
           RegularizerOption("bias_regularizer", "Added to the loss for each bias."),
           LayoutOption("query_kernel_layout",
                        "The layout of `query.kernel`: an axis of the mesh, or unsharded, for "
                        "each of its two dimensions. It goes before `layout.rules`. Columns are "
                        "heads, which no axis may cut.",
                        "[unsharded, batch]"),
           LayoutOption("query_bias_layout", "The layout of `query.bias`.", "[batch]"),
           LayoutOption("key_kernel_layout", "The layout of `key.kernel`.", "[unsharded, batch]"),
           LayoutOption("key_bias_layout", "The layout of `key.bias`.", "[batch]"),
           LayoutOption("value_kernel_layout", "The layout of `value.kernel`.",
                        "[unsharded, batch]"),
           LayoutOption("value_bias_layout", "The layout of `value.bias`.", "[batch]"),
           LayoutOption("output_kernel_layout",
                        "The layout of `output.kernel`, whose rows are heads.",
                        "[batch, unsharded]"),
           LayoutOption("output_bias_layout", "The layout of `output.bias`.", "[batch]")},
      .second_input = true,
      .weights = [](const Options& options) {
        std::vector<std::pair<std::string, int>> weights;
        for (const char* projection : {"query", "key", "value", "output"}) {
          weights.emplace_back(std::string(projection) + ".kernel", 2);
          if (!options.Bool("use_bias", true)) continue;
          weights.emplace_back(std::string(projection) + ".bias", 1);
        }
        return weights;
      }};
}

}  // namespace meshtrain::manifest::layers
