// The type of a tensor that has a name: a weight in a file, a variable on its servers.
#pragma once

#include <string>

#include "runtime/mesh/shape.h"

namespace meshtrain::mesh {

struct NamedType {
  std::string name;
  TensorType type;
  friend bool operator==(const NamedType&, const NamedType&) = default;
};

}  // namespace meshtrain::mesh
