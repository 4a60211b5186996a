#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {

Entry Activation() {
  return {.name = "activation",
          .about = "A function of each element.",
          .options = {
              field::Required(ActivationOption({.about = "Which function.", .sample = "tanh"}))}};
}

}  // namespace meshtrain::manifest::layers
