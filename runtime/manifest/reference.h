// What the rows say to readers.
#pragma once

#include <string>

namespace meshtrain::manifest {

// docs/reference/fields.md: every field, and everything that can be chosen by name.
std::string ReferencePage();

}  // namespace meshtrain::manifest
