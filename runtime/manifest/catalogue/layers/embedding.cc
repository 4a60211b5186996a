#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
namespace {

std::vector<std::pair<std::string, int>> Embeddings(const Options&) { return {{"embeddings", 2}}; }

// `own`, and then what every table takes. `initializer`: what holds without one.
std::vector<Field> WithTable(std::vector<Field> own, std::string_view initializer) {
  for (Field& field : std::vector<Field>{
           option::OneOf("embeddings_initializer", Initializers(),
                         {.about = "The table's first values.",
                         .fallback = initializer,
                         .sample = "he_normal"}),
           RegularizerOption("embeddings_regularizer", "Added to the loss for the table."),
           LayoutOption("embeddings_layout",
                        "The table's layout: an axis of the mesh, or unsharded, "
                        "for each of its two dimensions. It goes before "
                        "`layout.rules`. Of a table that is split by rows, a step "
                        "gathers the rows or sums the embeddings over the devices, "
                        "whichever takes less time by the cost model; "
                        "`meshtrain plan` lists what is gathered.",
                        "[batch, unsharded]")}) {
    own.push_back(std::move(field));
  }
  return own;
}

}  // namespace

Entry Embedding() {
  return {.name = "embedding",
          .about = "A row of a table for each id, [...] -> [..., output_dim].",
          .options = WithTable(
              {field::Required(option::Int("input_dim", {.least = 1},
                                           {.about = "The rows of the table: ids go from 0 to one "
                                                     "less.",
                                            .sample = "16"})),
               field::Required(option::Int("output_dim", {.least = 1},
                                           {.about = "The size of a row.", .sample = "4"})),
               option::Word("dtype", {"f32", "f64", "bf16", "f16"},
                            {.about = "The type of the table, and so of what follows.",
                             .fallback = "f32",
                             .sample = "f64"})},
              "random_uniform"),
          .weights = Embeddings};
}

Entry PositionEmbedding() {
  return {
      .name = "position_embedding",
      .about = "x [N, T, D] plus a row of a table for each of the T positions.",
      .options = WithTable({option::Int("sequence_length", {.least = 1},
                                        {.about = "The rows of the table; T is at most so many.",
                                         .fallback = "T",
                                         .sample = "8"})},
                           "glorot_uniform"),
      .weights = Embeddings};
}

}  // namespace meshtrain::manifest::layers
