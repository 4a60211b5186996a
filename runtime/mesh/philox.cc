#include "runtime/mesh/philox.h"

namespace meshtrain::mesh {

std::array<uint32_t, 4> Philox(const std::array<uint32_t, 2>& key,
                               const std::array<uint32_t, 4>& counter) {
  std::array<uint32_t, 4> c = counter;
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace meshtrain::mesh
