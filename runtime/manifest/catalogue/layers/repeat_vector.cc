#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry RepeatVector() {
  return {.name = "repeat_vector",
          .about = "[N, D] becomes [N, n, D]: each example n times.",
          .options = {field::Required(
              option::Int("n", {.least = 1}, {.about = "How often.", .sample = "3"}))}};
}

}  // namespace meshtrain::manifest::layers
