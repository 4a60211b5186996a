// An element of a source on its way through a pipeline.
#pragma once

#include <cstdint>

namespace meshtrain::data {

struct Element {
  int64_t index = 0;  // in the source
  int64_t pass = 0;   // run through the source, from 0
  friend bool operator==(const Element&, const Element&) = default;
};

}  // namespace meshtrain::data
