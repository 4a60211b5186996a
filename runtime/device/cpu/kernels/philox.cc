// Philox 4x32-10 in bulk. Compiled without fused multiply-add: TensorFlow rounds each step of a uniform number.
#include "runtime/device/cpu/kernels/parts.h"

namespace meshtrain::device::cpu::MT_ISA {

void Philox(const uint32_t key[2], const uint32_t counter[4], uint64_t group, int64_t groups, uint32_t* d) {
  constexpr int kLanes = 16;
  const uint64_t low = uint64_t{counter[0]} | uint64_t{counter[1]} << 32;
  const uint64_t high = uint64_t{counter[2]} | uint64_t{counter[3]} << 32;
  for (int64_t done = 0; done < groups; done += kLanes) {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t step = group + static_cast<uint64_t>(done + i);
      const uint64_t l = low + step;
      const uint64_t h = high + (l < low ? 1 : 0);
      c0[i] = static_cast<uint32_t>(l);
      c1[i] = static_cast<uint32_t>(l >> 32);
      c2[i] = static_cast<uint32_t>(h);
      c3[i] = static_cast<uint32_t>(h >> 32);
    }
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t p0 = uint64_t{c0[i]} * 0xD2511F53u;
        const uint64_t p1 = uint64_t{c2[i]} * 0xCD9E8D57u;
        const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
        const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
        c1[i] = static_cast<uint32_t>(p1);
        c3[i] = static_cast<uint32_t>(p0);
        c0[i] = n0;
        c2[i] = n2;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const int64_t left = groups - done < kLanes ? groups - done : kLanes;
    uint32_t* to = d + done * 4;
    for (int64_t i = 0; i < left; ++i) {
      to[4 * i] = c0[i];
      to[4 * i + 1] = c1[i];
      to[4 * i + 2] = c2[i];
      to[4 * i + 3] = c3[i];
    }
  }
}

void UniformF32(const uint32_t* words, int64_t n, float scale, float low, float* d) {
  for (int64_t i = 0; i < n; ++i) {
    const float fraction = __builtin_bit_cast(float, (words[i] & 0x7FFFFFu) | 0x3F800000u) - 1.0f;
    d[i] = fraction * scale + low;
  }
}

}  // namespace meshtrain::device::cpu::MT_ISA
