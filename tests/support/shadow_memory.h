// For tests of how much memory a process takes.
#pragma once

namespace meshtrain::testing {

// A sanitizer keeps notes beside the memory that a program touches: so many times as much is
// resident at the most.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kShadow = 8;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kShadow = 4;
#else
inline constexpr int kShadow = 1;
#endif

}  // namespace meshtrain::testing
