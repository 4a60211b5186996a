// XXH3 of 64 bits: what every frame carries of its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace meshtrain::collective {

uint64_t Checksum(const void* data, size_t bytes);
inline uint64_t Checksum(std::string_view text) { return Checksum(text.data(), text.size()); }

}  // namespace meshtrain::collective
