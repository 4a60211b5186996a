#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {

Entry Add() { return {.name = "add", .about = "The sum of its inputs.", .several_inputs = true}; }

}  // namespace meshtrain::manifest::layers
