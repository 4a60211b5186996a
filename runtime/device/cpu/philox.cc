#include "runtime/device/cpu/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "runtime/device/cpu/kernels.h"

namespace meshtrain::device::cpu {
namespace {

// Words made at a time.
constexpr int64_t kBatch = 1024;

// Calls use(words, offset in out, n elements) for batches of whole groups; `per` words make one
// element.
template <typename Use>
void ForWords(const PhiloxKey& key, int64_t per, int64_t first, int64_t count, const Use& use) {
  alignas(64) uint32_t words[kBatch];
  int64_t done = 0;
  while (done < count) {
    const int64_t word = (first + done) * per;
    const int64_t skip = word % 4;  // the first batch may begin inside a group
    const int64_t elements = std::min(count - done, (kBatch - skip) / per);
    const int64_t groups = (skip + elements * per + 3) / 4;
    ActiveKernels().philox(key.key.data(), key.counter.data(), static_cast<uint64_t>(word / 4),
                           groups, words);
    use(words + skip, done, elements);
    done += elements;
  }
}

// The low bits as mantissa of a number in [1, 2), less 1.
float ToFloat(uint32_t x) { return std::bit_cast<float>((x & 0x7FFFFFu) | 0x3F800000u) - 1.0f; }
double ToDouble(uint32_t x0, uint32_t x1) {
  const uint64_t mantissa = uint64_t{x0 & 0xFFFFFu} << 32 | x1;
  return std::bit_cast<double>(mantissa | uint64_t{1023} << 52) - 1.0;
}

template <typename T>
struct Two {
  T a, b;
};

constexpr double kTwoPi = 2 * std::numbers::pi;

// 2 pi u is formed in double and then rounded; the rest are calls of C's float functions.
Two<float> BoxMuller(uint32_t x0, uint32_t x1) {
  const float u1 = std::max(ToFloat(x0), 1.0e-7f);
  const float v1 = static_cast<float>(kTwoPi * static_cast<double>(ToFloat(x1)));
  const float u2 = std::sqrt(-2.0f * std::log(u1));
  return {std::sin(v1) * u2, std::cos(v1) * u2};
}

Two<double> BoxMuller(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
  const double u1 = std::max(ToDouble(x0, x1), 1.0e-7);
  const double v1 = kTwoPi * ToDouble(x2, x3);
  const double u2 = std::sqrt(-2.0 * std::log(u1));
  return {std::sin(v1) * u2, std::cos(v1) * u2};
}

// One group's worth of normal numbers.
struct FloatNormals {
  static constexpr int kCount = 4;
  static void Make(const uint32_t* w, float* out) {
    const Two<float> p = BoxMuller(w[0], w[1]), q = BoxMuller(w[2], w[3]);
    out[0] = p.a;
    out[1] = p.b;
    out[2] = q.a;
    out[3] = q.b;
  }
};
struct DoubleNormals {
  static constexpr int kCount = 2;
  static void Make(const uint32_t* w, double* out) {
    const Two<double> p = BoxMuller(w[0], w[1], w[2], w[3]);
    out[0] = p.a;
    out[1] = p.b;
  }
};

template <typename Maker, typename T>
void Normals(const PhiloxKey& key, T mean, T stddev, int64_t first, std::span<T> out) {
  constexpr int64_t kCount = Maker::kCount;
  alignas(64) uint32_t words[kBatch];
  T numbers[kCount];
  const auto count = static_cast<int64_t>(out.size());
  int64_t i = 0;
  while (i < count) {
    const int64_t group = (first + i) / kCount;
    const int64_t last = (first + count - 1) / kCount;
    const int64_t groups = std::min(last - group + 1, kBatch / 4);
    ActiveKernels().philox(key.key.data(), key.counter.data(), static_cast<uint64_t>(group), groups,
                           words);
    for (int64_t g = 0; g < groups; ++g) {
      Maker::Make(words + 4 * g, numbers);
      for (int64_t k = (first + i) % kCount; k < kCount && i < count; ++k, ++i) {
        out[i] = numbers[k] * stddev + mean;
      }
    }
  }
}

// TensorFlow keeps 256 samples in reserve for each output: output group g begins kSkip counters
// after the one before and draws until it is full.
template <typename Maker, typename T>
void Truncated(const PhiloxKey& key, T mean, T stddev, int64_t first, std::span<T> out) {
  constexpr int64_t kCount = Maker::kCount;
  constexpr uint64_t kSkip = kCount * 256 / 4;
  constexpr T kLimit = 2;
  const auto count = static_cast<int64_t>(out.size());
  T kept[kCount], drawn[kCount];
  for (int64_t i = 0; i < count;) {
    const int64_t group = (first + i) / kCount;
    int64_t have = 0;
    for (uint64_t draw = 0; have < kCount; ++draw) {
      const std::array<uint32_t, 4> words =
          PhiloxGroup(key, static_cast<uint64_t>(group) * kSkip + draw);
      Maker::Make(words.data(), drawn);
      for (int64_t k = 0; k < kCount && have < kCount; ++k) {
        if (std::abs(drawn[k]) < kLimit) kept[have++] = drawn[k];
      }
    }
    for (int64_t k = (first + i) % kCount; k < kCount && i < count; ++k, ++i) {
      out[i] = kept[k] * stddev + mean;
    }
  }
}

}  // namespace

void PhiloxWords(const PhiloxKey& key, int64_t first, std::span<uint32_t> out) {
  ForWords(key, 1, first, static_cast<int64_t>(out.size()),
           [&](const uint32_t* words, int64_t at, int64_t n) {
             std::copy_n(words, n, out.data() + at);
           });
}

void FillUniform(const PhiloxKey& key, float low, float high, int64_t first, std::span<float> out) {
  const float scale = high - low;
  ForWords(key, 1, first, static_cast<int64_t>(out.size()),
           [&](const uint32_t* words, int64_t at, int64_t n) {
             ActiveKernels().uniform_f32(words, n, scale, low, out.data() + at);
           });
}

void FillUniform(const PhiloxKey& key, double low, double high, int64_t first,
                 std::span<double> out) {
  const double scale = high - low;
  ForWords(key, 2, first, static_cast<int64_t>(out.size()),
           [&](const uint32_t* words, int64_t at, int64_t n) {
             for (int64_t i = 0; i < n; ++i) {
               out[at + i] = ToDouble(words[2 * i], words[2 * i + 1]) * scale + low;
             }
           });
}

void FillUniform(const PhiloxKey& key, int32_t low, int32_t high, int64_t first,
                 std::span<int32_t> out) {
  const uint32_t range = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
  ForWords(key, 1, first, static_cast<int64_t>(out.size()),
           [&](const uint32_t* words, int64_t at, int64_t n) {
             for (int64_t i = 0; i < n; ++i) {
               out[at + i] = static_cast<int32_t>(static_cast<uint32_t>(low) + words[i] % range);
             }
           });
}

void FillUniform(const PhiloxKey& key, int64_t low, int64_t high, int64_t first,
                 std::span<int64_t> out) {
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  ForWords(key, 2, first, static_cast<int64_t>(out.size()),
           [&](const uint32_t* words, int64_t at, int64_t n) {
             for (int64_t i = 0; i < n; ++i) {
               const uint64_t x = uint64_t{words[2 * i]} | uint64_t{words[2 * i + 1]} << 32;
               out[at + i] = static_cast<int64_t>(static_cast<uint64_t>(low) + x % range);
             }
           });
}

void FillNormal(const PhiloxKey& key, float mean, float stddev, int64_t first,
                std::span<float> out) {
  Normals<FloatNormals>(key, mean, stddev, first, out);
}
void FillNormal(const PhiloxKey& key, double mean, double stddev, int64_t first,
                std::span<double> out) {
  Normals<DoubleNormals>(key, mean, stddev, first, out);
}
void FillTruncatedNormal(const PhiloxKey& key, float mean, float stddev, int64_t first,
                         std::span<float> out) {
  Truncated<FloatNormals>(key, mean, stddev, first, out);
}
void FillTruncatedNormal(const PhiloxKey& key, double mean, double stddev, int64_t first,
                         std::span<double> out) {
  Truncated<DoubleNormals>(key, mean, stddev, first, out);
}

}  // namespace meshtrain::device::cpu
