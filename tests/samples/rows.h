// Samples of what a program adds to the manifest: each has its own file here, and one row in
// rows.cc.
#pragma once

#include <vector>

#include "runtime/recipe/rows.h"

namespace meshtrain::samples {

std::vector<recipe::Row> Rows();

}  // namespace meshtrain::samples
