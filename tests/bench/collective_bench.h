// What the benchmarks of collectives share: processes that begin together, and one line of JSON per
// mode.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace meshtrain::bench {

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Memory that children share.
template <typename T>
T* Shared() {
  void* memory =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) T;
}

struct Together {
  std::atomic<int> count{0}, phase{0};
  std::atomic<int> ports[64]{};
  std::atomic<long> cpu_us{0};  // of all processes
  // Asleep: who waits awake takes the cores from those who still work, and its time counts as
  // theirs.
  void Wait(int processes) {
    const int before = phase.load();
    if (count.fetch_add(1) + 1 == processes) {
      count.store(0);
      phase.fetch_add(1);
      syscall(SYS_futex, &phase, FUTEX_WAKE, processes, nullptr, nullptr, 0);
    } else {
      while (phase.load() == before) {
        syscall(SYS_futex, &phase, FUTEX_WAIT, before, nullptr, nullptr, 0);
      }
    }
  }
};

// Forks `processes` - 1 children; gives each its number. The children must end with _exit.
inline int Fork(int processes) {
  for (int p = 1; p < processes; ++p) {
    if (fork() == 0) {
      alarm(120);
      return p;
    }
  }
  alarm(120);
  return 0;
}

inline long CpuMicroseconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec +
         used.ru_stime.tv_usec;
}

struct Times {
  std::vector<double> seconds;  // sorted
  double cpu_us = 0;  // per call, of all processes together: what stays true on a busy machine
};

// Times `run` on process 0: from when all begin to when all are done. A small payload is timed call
// by call without meeting in between, as a training step would make it.
inline Times Measure(Together& together, int processes, int rounds, bool small,
                     const std::function<void()>& run) {
  Times times;
  together.Wait(processes);
  const long before = CpuMicroseconds();
  for (int i = 0; i < rounds; ++i) {
    if (!small) together.Wait(processes);
    const double begin = Now();
    run();
    if (!small) together.Wait(processes);
    times.seconds.push_back(Now() - begin);
  }
  together.cpu_us.fetch_add(CpuMicroseconds() - before);
  together.Wait(processes);
  std::sort(times.seconds.begin(), times.seconds.end());
  times.cpu_us = static_cast<double>(together.cpu_us.load()) / rounds;
  return times;
}

inline void Print(const std::string& name, int processes, long bytes, const Times& times) {
  const std::vector<double>& s = times.seconds;
  std::printf(
      "{\"name\": \"%s\", \"processes\": %d, \"bytes\": %ld, \"best_us\": %.1f, \"median_us\": "
      "%.1f, "
      "\"cpu_us\": %.1f}\n",
      name.c_str(), processes, bytes, s.front() * 1e6, s[s.size() / 2] * 1e6, times.cpu_us);
  std::fflush(stdout);
}

// The children end; the parent waits for them.
inline int Finish(int process) {
  if (process > 0) _exit(0);
  int failed = 0, how = 0;
  while (wait(&how) > 0) failed |= how;
  return failed == 0 ? 0 : 1;
}

}  // namespace meshtrain::bench
