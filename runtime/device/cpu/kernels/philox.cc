// Philox 4x32-10 in bulk. Compiled without fused multiply-add: TensorFlow rounds each step of a
// uniform number.
#include "runtime/device/cpu/kernels/parts.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace meshtrain::device::cpu::MT_ISA {
namespace {

// A word per 64-bit lane. Only the low half counts; the high half may hold anything.
typedef uint64_t Lanes __attribute__((vector_size(kVectorBytes)));
typedef int64_t Places __attribute__((vector_size(kVectorBytes)));
constexpr int kLanes = kVectorBytes / 8;
constexpr int kChains = 4;  // independent groups in flight, since each round waits for the last

// The 64-bit products of the low halves.
inline Lanes MulLow(Lanes a, uint32_t b) {
  const Lanes factor = Lanes{} + b;
#if defined(__AVX512F__)
  return (Lanes)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined(__AVX2__)
  return (Lanes)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
  return (Lanes)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
  return (a & 0xFFFFFFFFu) * factor;
#endif
}

inline Lanes Counting() {
  Lanes v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<uint64_t>(i);
  return v;
}

// lo[0] hi[0] lo[1] hi[1] ...
inline void Interleave(Lanes lo, Lanes hi, Lanes* d) {
  Places first = {}, second = {};
  for (int i = 0; i < kLanes; ++i) {
    first[i] = i / 2 + (i % 2) * kLanes;
    second[i] = i / 2 + kLanes / 2 + (i % 2) * kLanes;
  }
  d[0] = __builtin_shuffle(lo, hi, first);
  d[1] = __builtin_shuffle(lo, hi, second);
}

}  // namespace

void Philox(const uint32_t key[2], const uint32_t counter[4], uint64_t group, int64_t groups,
            uint32_t* d) {
  const uint64_t low = uint64_t{counter[0]} | uint64_t{counter[1]} << 32;
  const uint64_t high = uint64_t{counter[2]} | uint64_t{counter[3]} << 32;
  constexpr int kStep = kLanes * kChains;
  for (int64_t done = 0; done < groups; done += kStep) {
    Lanes c0[kChains], c1[kChains], c2[kChains], c3[kChains];
    for (int j = 0; j < kChains; ++j) {
      const Lanes l = Counting() + (low + group + static_cast<uint64_t>(done + j * kLanes));
      const Lanes h = high - (Lanes)(l < low);  // a true lane is -1: the carry
      c0[j] = l;
      c1[j] = l >> 32;
      c2[j] = h;
      c3[j] = h >> 32;
    }
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
      for (int j = 0; j < kChains; ++j) {
        const Lanes p0 = MulLow(c0[j], 0xD2511F53u);
        const Lanes p1 = MulLow(c2[j], 0xCD9E8D57u);
        c0[j] = (p1 >> 32) ^ c1[j] ^ k0;
        c2[j] = (p0 >> 32) ^ c3[j] ^ k1;
        c1[j] = p1;
        c3[j] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    Lanes words[2 * kChains];
    for (int j = 0; j < kChains; ++j) {
      Interleave((c0[j] & 0xFFFFFFFFu) | c1[j] << 32, (c2[j] & 0xFFFFFFFFu) | c3[j] << 32,
                 words + 2 * j);
    }
    const int64_t left = groups - done < kStep ? groups - done : kStep;
    __builtin_memcpy(d + done * 4, words, static_cast<uint64_t>(left) * 16);
  }
}

void UniformF32(const uint32_t* words, int64_t n, float scale, float low, float* d) {
  for (int64_t i = 0; i < n; ++i) {
    const float fraction = __builtin_bit_cast(float, (words[i] & 0x7FFFFFu) | 0x3F800000u) - 1.0f;
    d[i] = fraction * scale + low;
  }
}

}  // namespace meshtrain::device::cpu::MT_ISA
