// Memory of a kernel under test: whoever touches what lies behind it ends the test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/device/cpu/memory.h"

namespace meshtrain::device::cpu {

template <typename T>
Memory Fenced(const std::vector<T>& numbers) {
  Memory memory = *Memory::Create(static_cast<int64_t>(numbers.size() * sizeof(T)), true);
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<T*>(memory.data()));
  return memory;
}

}  // namespace meshtrain::device::cpu
