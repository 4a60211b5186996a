// For tests of how much memory a process takes.
#pragma once

namespace meshtrain::testing {

// A sanitizer keeps notes beside the memory that a program touches: so many times as much is
// resident at the most. What was freed is held back for a while: so many MiB of it.
#ifdef MT_SHADOW  // cmake/MtTargets.cmake: g++'s own macro is undefined where gRPC is included
inline constexpr int kShadow = MT_SHADOW;
inline constexpr int kHeldBackMiB = 256;
#else
inline constexpr int kShadow = 1;
inline constexpr int kHeldBackMiB = 0;
#endif

}  // namespace meshtrain::testing
