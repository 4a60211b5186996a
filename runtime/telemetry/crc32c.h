// CRC-32C (Castagnoli, RFC 3720 appendix B.4) and TFRecord's mask of it.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshtrain::telemetry {

uint32_t Crc32c(std::string_view bytes);

// TensorFlow's tsl/lib/hash/crc32c.h: a checksum of data that holds checksums should not be one of
// itself.
inline uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

}  // namespace meshtrain::telemetry
