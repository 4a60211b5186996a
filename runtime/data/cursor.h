// Where a pipeline stands: enough to go on with the very batches that would have come next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace meshtrain::data {

struct Cursor {
  int64_t epoch = 0;  // passes finished
  int64_t batch = 0;  // batches handed out in this pass
  uint64_t fingerprint =
      0;  // of what decides the order: source size, stages; not of the elements' values

  // "epoch=3 batch=17 order=00c0ffee00c0ffee": one line, for an index or a log.
  std::string ToString() const;
  static Result<Cursor> Parse(std::string_view text);
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

}  // namespace meshtrain::data
