#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
Entry Dense() {
  return {.name = "dense",
          .about = "activation(x @ kernel + bias).",
          .options = WithKernelAndBias(
              {field::Required(option::Int(
                  "units", {.least = 1},
                  {.about = "The size of the last dimension of its output.", .sample = "12"}))},
              "[unsharded, batch]"),
          .weights = KernelAndBias<2>};
}

}  // namespace meshtrain::manifest::layers
