#include "runtime/program/limits.h"

#include <algorithm>
#include <string>

namespace meshtrain::program {

Status CheckLimits(const mesh::TensorType& type) {
  if (type.rank() > kMaxRank) {
    return InvalidArgument("expected at most " + std::to_string(kMaxRank) +
                           " dimensions, got: " + std::to_string(type.rank()));
  }
  int64_t bytes = mesh::DTypeBytes(type.dtype);
  for (const int64_t d : type.dims) {
    if (d < 0) {
      return InvalidArgument("expected dimensions of at least 0, got: " + type.ToString());
    }
    if (d > 1 && bytes > kMaxBytes / d) {
      return InvalidArgument("expected at most 2^50 bytes, got: " + type.ToString());
    }
    bytes *= std::max<int64_t>(d, 1);
  }
  return OkStatus();
}

}  // namespace meshtrain::program
