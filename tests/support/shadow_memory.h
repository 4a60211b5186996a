// For tests of how much memory a process takes.
#pragma once

namespace meshtrain::testing {

// A sanitizer keeps notes beside the memory that a program touches: so many times as much is
// resident at the most.
#ifdef MT_SHADOW  // cmake/MtTargets.cmake: g++'s own macro is undefined where gRPC is included
inline constexpr int kShadow = MT_SHADOW;
#else
inline constexpr int kShadow = 1;
#endif

}  // namespace meshtrain::testing
