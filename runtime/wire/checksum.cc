#include "runtime/wire/checksum.h"

// The library's own choice among SSE2, AVX2 and AVX-512, at run time; it exists for x86 only.
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "runtime/base/check.h"

namespace meshtrain::wire {
namespace {

#if defined(__x86_64__)
// Debian's library (0.8.1) returns with the upper halves of the vector registers in use, which
// slows the SSE instructions that follow until somebody clears them: on an AMD EPYC (Zen 4)
// checking, adding and checking 16 MB took 1.9 ms in place of 1.3.
[[gnu::target("avx")]] void ClearUpperHalves() { __builtin_ia32_vzeroupper(); }
const bool kHasUpperHalves = __builtin_cpu_supports("avx") != 0;
#endif

void AfterUse() {
#if defined(__x86_64__)
  if (kHasUpperHalves) ClearUpperHalves();
#endif
}

}  // namespace

uint64_t Checksum(const void* data, size_t bytes) {
  const uint64_t sum = XXH3_64bits(data, bytes);
  AfterUse();
  return sum;
}

std::string HexText(uint64_t value) {
  char text[16];
  for (int i = 0; i < 16; ++i) text[i] = "0123456789abcdef"[(value >> (60 - 4 * i)) & 15];
  return std::string(text, 16);
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  MT_CHECK(state_ != nullptr);
  XXH3_64bits_reset(state_.get());
}
void RunningChecksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void RunningChecksum::Add(const void* data, size_t bytes) {
  XXH3_64bits_update(state_.get(), data, bytes);
  AfterUse();
}
uint64_t RunningChecksum::value() const {
  const uint64_t sum = XXH3_64bits_digest(state_.get());
  AfterUse();
  return sum;
}

}  // namespace meshtrain::wire
