#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Concatenate() {
  return {
      .name = "concatenate",
      .about = "Its inputs, one behind the other.",
      .options = {option::Int(
          "axis", {}, {.about = "The dimension along which.", .fallback = "-1", .sample = "1"})},
      .several_inputs = true};
}

}  // namespace meshtrain::manifest::layers
