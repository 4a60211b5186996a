// Random numbers that depend on a seed and an element's place only: Philox 4x32-10 (Salmon, Moraes,
// Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11), keyed and spread as
// TensorFlow's stateless_* do, bit for bit (tests/testdata/rng). Each function writes elements
// first .. first + out.size() - 1 of the stream that the seed has, so that a shard gets the numbers
// which its elements have in the whole tensor. Pure; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace meshtrain::device::cpu {

struct PhiloxKey {
  std::array<uint32_t, 2> key{};
  std::array<uint32_t, 4> counter{};  // 128 bits, little-endian: where the stream begins
};

// TensorFlow's StatelessRandomGetKeyCounter: one Philox call, with this key and the seeds as its
// counter, scrambles the two seeds. Its first two words are the key, the others counter[2], [3].
inline constexpr PhiloxKey kScramble = {{0x3EC8F720u, 0x02461E29u}, {}};
PhiloxKey PhiloxFromSeed(int64_t seed0, int64_t seed1);

// Four words from one counter.
std::array<uint32_t, 4> PhiloxGroup(const PhiloxKey& key, uint64_t group);
// Words first .. of the stream.
void PhiloxWords(const PhiloxKey& key, int64_t first, std::span<uint32_t> out);

// In [low, high): fraction * (high - low) + low, each step rounded.
void FillUniform(const PhiloxKey& key, float low, float high, int64_t first, std::span<float> out);
void FillUniform(const PhiloxKey& key, double low, double high, int64_t first,
                 std::span<double> out);
// Whole numbers in [low, high), high > low.
void FillUniform(const PhiloxKey& key, int32_t low, int32_t high, int64_t first,
                 std::span<int32_t> out);
void FillUniform(const PhiloxKey& key, int64_t low, int64_t high, int64_t first,
                 std::span<int64_t> out);
// Box-Muller, times stddev plus mean.
void FillNormal(const PhiloxKey& key, float mean, float stddev, int64_t first,
                std::span<float> out);
void FillNormal(const PhiloxKey& key, double mean, double stddev, int64_t first,
                std::span<double> out);
// Normal numbers drawn again until they lie within two standard deviations.
void FillTruncatedNormal(const PhiloxKey& key, float mean, float stddev, int64_t first,
                         std::span<float> out);
void FillTruncatedNormal(const PhiloxKey& key, double mean, double stddev, int64_t first,
                         std::span<double> out);

// The key of op dropout_mask: PhiloxFromSeed(DropoutSeed(seed, path), step), the first of which is
// seed ^ FNV-1a-64(path). An element is kept
// where FillUniform's f32 number in [0, 1) is at least the rate, whatever the dtype of the mask.
int64_t DropoutSeed(int64_t seed, std::string_view path);
PhiloxKey DropoutKey(int64_t seed, std::string_view path, int64_t step);

}  // namespace meshtrain::device::cpu
