#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Dropout() {
  return {.name = "dropout",
          .about = "In training some elements, drawn anew in each step, are 0.",
          .options = {field::Required(option::Number(
                          "rate", {.least = 0, .below = 1},
                          {.about = "The share of elements that are 0.", .sample = "0.25"})),
                      option::Int("seed", {},
                                  {.about = "What the draws follow from.",
                                   .fallback = "the program's seed and the layer's path",
                                   .sample = "9"})}};
}

}  // namespace meshtrain::manifest::layers
