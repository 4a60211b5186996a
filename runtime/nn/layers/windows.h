// What the layers of windows share. Private to nn/layers.
#pragma once

#include <algorithm>
#include <string>

#include "runtime/choice/choice.h"
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

// Of a convolution: its input, its lists and how many filters it has.
inline Status CheckConv(std::string_view kind, const TensorType& x, int spatial,
                        const Sizes& kernel_size, const ConvOptions& options, int64_t filters) {
  MT_RETURN_IF_ERROR(CheckSpatialInput(kind, x, spatial));
  MT_RETURN_IF_ERROR(CheckSizes("kernel_size", kernel_size, spatial));
  MT_RETURN_IF_ERROR(CheckSizes("strides", options.strides, spatial));
  MT_RETURN_IF_ERROR(CheckSizes("dilation_rate", options.dilations, spatial));
  if (filters > 0) return OkStatus();
  return InvalidArgument("filters must be at least 1, got: " + std::to_string(filters));
}

inline program::Dims ForEachSpatial(const Sizes& sizes, int spatial) {
  return sizes.size() == 1 ? program::Dims(spatial, sizes[0]) : sizes;
}

inline program::Windows WindowsOf(const ConvOptions& options, int spatial) {
  return {.strides = ForEachSpatial(options.strides, spatial),
          .dilations = ForEachSpatial(options.dilations, spatial),
          .padding = options.same ? program::Padding::kSame : program::Padding::kValid};
}

// What a text gives of a convolution.
ConvOptions ReadConvOptions(const std::string& name, const choice::Options& given);

}  // namespace meshtrain::nn
