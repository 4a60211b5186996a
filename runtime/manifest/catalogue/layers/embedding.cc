#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {

Entry Embedding() {
  return {
      .name = "embedding",
      .about = "A row of a table for each id, [...] -> [..., output_dim].",
      .options = {field::Required(
                      option::Int("input_dim", {.least = 1},
                                  {.about = "The rows of the table: ids go from 0 to one less.",
                                   .sample = "16"})),
                  field::Required(option::Int("output_dim", {.least = 1},
                                              {.about = "The size of a row.", .sample = "4"})),
                  option::OneOf("embeddings_initializer", Initializers(),
                                {.about = "The table's first values.",
                                 .fallback = "random_uniform",
                                 .sample = "he_normal"}),
                  RegularizerOption("embeddings_regularizer", "Added to the loss for the table."),
                  option::Texts("embeddings_layout",
                                {.about = "The table's layout: an axis of the mesh, or unsharded, "
                                          "for each of its two dimensions. It goes before "
                                          "`layout.rules`. A table that is split by rows stays "
                                          "where it is.",
                                 .fallback = "the rules'",
                                 .sample = "[batch, unsharded]"})},
      .weights = [](const Options&) {
        return std::vector<std::pair<std::string, int>>{{"embeddings", 2}};
      }};
}

}  // namespace meshtrain::manifest::layers
