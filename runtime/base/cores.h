// The cores that this process may compute on, and how to wait on one of them.
#pragma once

namespace meshtrain {

// As the system's affinity mask (taskset, a container's cpuset) allows; at least 1. Any thread.
int UsableCores();

// Tells the core that this is a loop that waits.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace meshtrain
