#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::sources {

Entry Idx() {
  return {.name = "idx",
          .about = "Files as MNIST's, gzipped or not.",
          .options = FilesAndLabels("The file of features.", "The file of labels.", "other.gz")};
}

}  // namespace meshtrain::manifest::sources
