#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::sources {

Entry Npy() {
  return {.name = "npy",
          .about = "Arrays as `numpy.save` leaves them, read a batch at a time.",
          .options = FilesAndLabels("The file of features, an array [examples, ...].",
                                    "The file of labels, as many.", "other.npy")};
}

}  // namespace meshtrain::manifest::sources
