#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Reshape() {
  return {.name = "reshape",
          .about = "Other dimensions for each example.",
          .options = {field::Required(
              option::Ints("dims", {.about = "The dimensions without the batch; one may be -1.",
                                    .sample = "[2, -1]"}))}};
}

}  // namespace meshtrain::manifest::layers
