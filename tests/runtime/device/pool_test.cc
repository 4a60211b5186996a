#include "runtime/device/cpu/pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

namespace meshtrain::device::cpu {
namespace {

TEST(PoolTest, RunsEachPieceOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    Pool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t pieces : {0, 1, 2, 7, 1000, 70000}) {
      std::vector<std::atomic<int>> ran(pieces);
      pool.Run(pieces, [&](int64_t i) { ran[i].fetch_add(1, std::memory_order_relaxed); });
      for (int64_t i = 0; i < pieces; ++i) ASSERT_EQ(ran[i].load(), 1) << i << " of " << pieces;
    }
  }
}

TEST(PoolTest, PiecesOfAForCoverItInGrains) {
  Pool pool(3);
  for (const int64_t n : {0, 1, 63, 64, 65, 1000, 12345}) {
    for (const int64_t grain : {1, 64, 5000}) {
      std::vector<int> seen(
          n, 0);  // pieces do not overlap, so plain ints do: the thread sanitizer watches
      std::atomic<int64_t> pieces{0};
      pool.For(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_LT(begin, end);
        ++pieces;
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), int64_t{0}), n);
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), n);
      if (n < 2 * grain) {
        EXPECT_LE(pieces.load(), 1);
      }
    }
  }
}

TEST(PoolTest, WhatALoopWroteIsSeenAfterIt) {
  Pool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 0; round < 3000; ++round) {
    pool.Run(64, [&](int64_t i) { values[i] += i; });
    if (round % 500 == 499) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // let the helpers sleep
    }
  }
  for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(values[i], 3000 * i);
}

TEST(PoolTest, LoopsInsideLoopsRunOnTheirCaller) {
  Pool pool(4);
  std::atomic<int64_t> count{0};
  std::atomic<bool> moved{false};
  pool.Run(16, [&](int64_t) {
    const auto me = std::this_thread::get_id();
    pool.Run(8, [&](int64_t) {
      ++count;
      if (std::this_thread::get_id() != me) moved = true;
    });
  });
  EXPECT_EQ(count.load(), 16 * 8);
  EXPECT_FALSE(moved.load());
}

TEST(PoolTest, SeveralCallersAtOnceAllFinish) {
  Pool pool(3);
  std::vector<int64_t> sums(4, 0);
  {
    std::vector<std::jthread> callers;
    for (int64_t& sum : sums) {
      callers.emplace_back([&pool, &sum] {
        for (int round = 0; round < 500; ++round) {
          std::vector<int64_t> parts(16, 0);
          pool.Run(16, [&](int64_t i) { parts[i] = i; });
          sum += std::accumulate(parts.begin(), parts.end(), int64_t{0});
        }
      });
    }
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, 500 * 120);
}

// How many of this process's threads the system has on a core or waiting for one.
int ThreadsThatRun() {
  int running = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(thread.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(stat)), {});
    const size_t name_ends = text.rfind(')');
    running += name_ends != std::string::npos && text.substr(name_ends, 3) == ") R" ? 1 : 0;
  }
  return running;
}

TEST(PoolTest, AnIdlePoolSleeps) {
  Pool pool(3);
  std::atomic<int64_t> count{0};
  pool.Run(100, [&](int64_t) { ++count; });
  // This one asks. A thread that went on looking for work would be found running every time.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (ThreadsThatRun() > 1) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "a helper of an idle pool still runs";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pool.Run(100, [&](int64_t) { ++count; });
  EXPECT_EQ(count.load(), 200);
}

TEST(PoolDeathTest, WithoutThreadsLoopsRunOnTheirCaller) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers map memory of their own, whatever the limit";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // Room for some stacks of 8 MiB and not for 20.
        std::ifstream statm("/proc/self/statm");
        rlim_t pages = 0;
        statm >> pages;
        const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (30 << 20);
        rlimit limit;
        limit.rlim_cur = limit.rlim_max = bytes;
        if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
        Pool pool(21);
        int64_t sum = 0;  // one thread: no two add at once
        pool.Run(100, [&](int64_t i) { sum += i; });
        std::fputs((pool.health().ToString() + "\n").c_str(), stderr);
        std::_Exit(!pool.health().ok() && pool.threads() == 1 && sum == 4950 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "computing: expected a thread, got: ");
}

}  // namespace
}  // namespace meshtrain::device::cpu
