#include "runtime/base/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

namespace meshtrain {
namespace {

TEST(ThreadTest, RunsTheBodyUntilItIsAskedToStop) {
  std::atomic<bool> ran = false;
  {
    const auto thread = StartThread("a test", [&](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::yield();
      ran = true;
    });
    ASSERT_TRUE(thread.ok()) << thread.status().ToString();
  }
  EXPECT_TRUE(ran);
}

// Takes this process all memory that a stack would need.
void LeaveNoRoom() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (1 << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
}

TEST(ThreadDeathTest, AThreadThatCannotBeMadeIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers map memory of their own, whatever the limit";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LeaveNoRoom();
        const auto thread = StartThread("a test", [](const std::stop_token&) {});
        if (!thread.ok()) std::fputs((thread.status().ToString() + "\n").c_str(), stderr);
        std::_Exit(thread.status().code() == StatusCode::kUnavailable ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "a test: expected a thread, got: Resource temporarily unavailable");
}

}  // namespace
}  // namespace meshtrain
