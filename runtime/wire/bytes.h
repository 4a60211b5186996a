// Whole numbers in the byte order of everything that leaves a process: little-endian.
#pragma once

#include <bit>
#include <concepts>
#include <cstring>

namespace meshtrain::wire {

static_assert(std::endian::native == std::endian::little,
              "numbers are written as they lie in memory");

// At any address.
template <std::integral T>
void Put(T value, void* to) {
  std::memcpy(to, &value, sizeof value);
}
template <std::integral T>
T Get(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace meshtrain::wire
