// Which registers a run's machine code has its values and pointers in.
#pragma once

#include <optional>
#include <vector>

#include "runtime/device/cpu/fused/machine_code.h"

namespace meshtrain::device::cpu::fused {

inline constexpr int kPointers = 12;    // general registers for them
inline constexpr int kTemporaries = 4;  // vector registers that an operation may spend

// For values, of AVX-512 (`wide`) or of AVX2, where one more holds the mask of the last elements.
inline constexpr int VectorRegisters(bool wide) { return (wide ? 32 : 15) - kTemporaries; }

// Is it the same for all elements, and read in place of all?
bool OfOneElement(const RunValue& value);

// The vector register of each value, from its first use to its last; -1: of none. Those of elements
// are held for the whole loop.
struct Assignment {
  std::vector<int> vector;    // by value
  std::vector<int> pointers;  // bases that are read or written element by element
};

// nullopt: there are not enough registers, or the run is longer than code should be.
std::optional<Assignment> Assign(const Run& run, bool wide);

}  // namespace meshtrain::device::cpu::fused
