#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Permute() {
  return {.name = "permute",
          .about = "The dimensions of each example in another order.",
          .options = {field::Required(
              option::Ints("dims", {.about = "The order; the first dimension of an example is 1.",
                                    .sample = "[2, 1]"}))}};
}

}  // namespace meshtrain::manifest::layers
