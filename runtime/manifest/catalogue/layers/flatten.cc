#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Flatten() { return {.name = "flatten", .about = "One dimension for each example."}; }

}  // namespace meshtrain::manifest::layers
