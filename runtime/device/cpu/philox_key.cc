// Keys, and one group of a stream, without the kernels that make many: StableHLO's rows need only
// these (pjrt/ops/random.cc).
#include "runtime/device/cpu/philox.h"
#include "runtime/mesh/philox.h"

namespace meshtrain::device::cpu {

std::array<uint32_t, 4> PhiloxGroup(const PhiloxKey& key, uint64_t group) {
  const uint64_t begin = uint64_t{key.counter[0]} | uint64_t{key.counter[1]} << 32;
  const uint64_t low = begin + group;
  const uint64_t high =
      (uint64_t{key.counter[2]} | uint64_t{key.counter[3]} << 32) + (low < begin ? 1 : 0);
  return mesh::Philox(key.key, {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                                static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)});
}

PhiloxKey PhiloxFromSeed(int64_t seed0, int64_t seed1) {
  const auto s0 = static_cast<uint64_t>(seed0), s1 = static_cast<uint64_t>(seed1);
  const PhiloxKey scramble = {kScramble.key,
                              {static_cast<uint32_t>(s0), static_cast<uint32_t>(s0 >> 32),
                               static_cast<uint32_t>(s1), static_cast<uint32_t>(s1 >> 32)}};
  const std::array<uint32_t, 4> mixed = PhiloxGroup(scramble, 0);
  return {{mixed[0], mixed[1]}, {0, 0, mixed[2], mixed[3]}};
}

int64_t DropoutSeed(int64_t seed, std::string_view path) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return static_cast<int64_t>(static_cast<uint64_t>(seed) ^ hash);
}

PhiloxKey DropoutKey(int64_t seed, std::string_view path, int64_t step) {
  return PhiloxFromSeed(DropoutSeed(seed, path), step);
}

}  // namespace meshtrain::device::cpu
