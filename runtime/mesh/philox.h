// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC'11): numbers that follow from a key and a counter alone, so that whoever needs the number of
// one place makes it without those before it. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace meshtrain::mesh {

// The four words of one counter.
std::array<uint32_t, 4> Philox(const std::array<uint32_t, 2>& key,
                               const std::array<uint32_t, 4>& counter);

}  // namespace meshtrain::mesh
