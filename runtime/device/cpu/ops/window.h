// The numbers of one op on windows, with three spatial dimensions.
#pragma once

#include <array>
#include <cstdint>

namespace meshtrain::device::cpu {

struct WindowShape {
  using Spatial = std::array<int64_t, 3>;
  int64_t n = 1, channels = 1, features = 1, groups = 1;
  Spatial elements = {1, 1, 1}, positions = {1, 1, 1};
  Spatial size = {1, 1, 1}, stride = {1, 1, 1}, dilation = {1, 1, 1};
  Spatial low = {0, 0, 0}, high = {0, 0, 0};

  int64_t taps() const { return size[0] * size[1] * size[2]; }
  int64_t elements_of_one() const { return elements[0] * elements[1] * elements[2]; }
  int64_t positions_of_one() const { return positions[0] * positions[1] * positions[2]; }
};

}  // namespace meshtrain::device::cpu
