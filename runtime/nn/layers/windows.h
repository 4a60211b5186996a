// What the layers of windows share. Private to nn/layers.
#pragma once

#include <algorithm>
#include <string>

#include "runtime/nn/layers.h"

namespace meshtrain::nn {

// Floats [N, S..., C] of that many spatial dimensions.
inline Status CheckSpatialInput(std::string_view kind, const TensorType& x, int spatial) {
  if (x.rank() == spatial + 2 && mesh::IsFloat(x.dtype)) return OkStatus();
  return InvalidArgument(std::string(kind) + " takes floats of " + std::to_string(spatial + 2) +
                         " dimensions, [N, " + std::to_string(spatial) +
                         " spatial, channels], got: " + x.ToString());
}

// At least 1 each, one for all spatial dimensions or one for each.
inline Status CheckSizes(std::string_view name, const Sizes& sizes, int spatial) {
  const bool fits = (sizes.size() == 1 || static_cast<int>(sizes.size()) == spatial) &&
                    std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s >= 1; });
  if (fits) return OkStatus();
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return InvalidArgument(std::string(name) + " must be 1 or " + std::to_string(spatial) +
                         " numbers of at least 1, got: [" + text + "]");
}

inline program::Dims ForEachSpatial(const Sizes& sizes, int spatial) {
  return sizes.size() == 1 ? program::Dims(spatial, sizes[0]) : sizes;
}

}  // namespace meshtrain::nn
