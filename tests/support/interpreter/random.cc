// Philox 4x32-10 (Salmon et al., SC'11) one element at a time, keyed and spread as TensorFlow's
// stateless_* ops are (tensorflow/core/lib/random/random_distributions.h): the lowest 23 (52) bits
// make the fraction, Box-Muller makes normals, and a truncated normal's group draws from 256 groups
// of its own until it is full.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::testing {
namespace {

using Words = std::array<uint32_t, 4>;

Words Group(const RandomKey& key, uint64_t group) {
  // counter + group, 128 bits, little-endian words
  uint64_t low = key.counter[0] | static_cast<uint64_t>(key.counter[1]) << 32;
  uint64_t high = key.counter[2] | static_cast<uint64_t>(key.counter[3]) << 32;
  low += group;
  if (low < group) ++high;
  Words c = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
             static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
  uint32_t k0 = key.key[0];
  uint32_t k1 = key.key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

float Fraction(uint32_t word) {
  return std::bit_cast<float>((word & 0x7fffff) | (127u << 23)) - 1.0f;
}
double Fraction(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high & 0xfffff) << 32) | low;
  return std::bit_cast<double>(bits | (uint64_t{1023} << 52)) - 1.0;
}

constexpr double kTwoPi = 2.0 * std::numbers::pi;

int64_t PerGroup(mesh::DType dtype) { return dtype == mesh::DType::kF64 ? 2 : 4; }

// All normals of one group of words: four floats or two doubles.
std::array<double, 4> Normals(const Words& w, mesh::DType dtype) {
  std::array<double, 4> out{};
  if (dtype != mesh::DType::kF64) {
    for (int pair = 0; pair < 2; ++pair) {
      const float u = std::max(Fraction(w[2 * pair]), 1.0e-7f);
      const auto angle = static_cast<float>(kTwoPi * Fraction(w[2 * pair + 1]));
      const float radius = std::sqrt(-2.0f * std::log(u));
      out[2 * pair] = std::sin(angle) * radius;
      out[2 * pair + 1] = std::cos(angle) * radius;
    }
    return out;
  }
  const double u = std::max(Fraction(w[0], w[1]), 1.0e-7);
  const double angle = kTwoPi * Fraction(w[2], w[3]);
  const double radius = std::sqrt(-2.0 * std::log(u));
  out[0] = std::sin(angle) * radius;
  out[1] = std::cos(angle) * radius;
  return out;
}

}  // namespace

RandomKey KeyOfSeed(int64_t seed0, int64_t seed1) {
  const auto a = static_cast<uint64_t>(seed0);
  const auto b = static_cast<uint64_t>(seed1);
  const RandomKey scramble{{0x3ec8f720, 0x02461e29},
                           {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                            static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32)}};
  const Words mixed = Group(scramble, 0);
  return {{mixed[0], mixed[1]}, {0, 0, mixed[2], mixed[3]}};
}

double UniformAt(const RandomKey& key, mesh::DType dtype, int64_t index) {
  const int64_t per = PerGroup(dtype);
  const Words w = Group(key, static_cast<uint64_t>(index / per));
  const int64_t at = index % per;
  return dtype == mesh::DType::kF64 ? Fraction(w[2 * at], w[2 * at + 1]) : Fraction(w[at]);
}

double NormalAt(const RandomKey& key, mesh::DType dtype, int64_t index) {
  const int64_t per = PerGroup(dtype);
  return Normals(Group(key, static_cast<uint64_t>(index / per)), dtype)[index % per];
}

double TruncatedNormalAt(const RandomKey& key, mesh::DType dtype, int64_t index) {
  const int64_t per = PerGroup(dtype);
  const auto first = static_cast<uint64_t>(index / per * per *
                                           64);  // 256 samples of 4 words are 256 * per / 4 groups
  std::array<double, 4> kept{};
  int64_t have = 0;
  for (uint64_t draw = 0; have < per; ++draw) {
    const std::array<double, 4> drawn = Normals(Group(key, first + draw), dtype);
    for (int64_t k = 0; k < per && have < per; ++k) {
      if (std::abs(drawn[k]) < 2.0) kept[have++] = drawn[k];
    }
  }
  return kept[index % per];
}

}  // namespace meshtrain::testing
