#include "operator/control/fan_out.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace meshtrain::control {
namespace {

using std::chrono::milliseconds;

TEST(FanOutTest, MakesEveryCallOnce) {
  FanOut fan_out(3);
  std::atomic<int> made = 0;
  const std::vector<std::function<Status()>> calls(100, [&] {
    ++made;
    return OkStatus();
  });
  EXPECT_TRUE(fan_out.Run(calls).ok());
  EXPECT_EQ(made, 100);
  EXPECT_TRUE(fan_out.Run({}).ok());
}

TEST(FanOutTest, StopsAtTheFirstError) {
  FanOut fan_out(3);
  std::atomic<int> made = 0;
  std::vector<std::function<Status()>> calls(100, [&] {
    const int number = made++;
    if (number == 10) return Aborted("x");
    // The others are slower than the news of it.
    if (number > 10) std::this_thread::sleep_for(milliseconds(10));
    return OkStatus();
  });
  EXPECT_EQ(fan_out.Run(calls).code(), StatusCode::kAborted);
  EXPECT_LT(made, 60);
}

TEST(FanOutTest, WorksInParallel) {
  FanOut fan_out(3);
  std::atomic<int> at_once = 0, most = 0;
  const std::vector<std::function<Status()>> calls(12, [&] {
    const int now = ++at_once;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    for (int i = 0; i < 10000 && most < 4; ++i) std::this_thread::sleep_for(milliseconds(1));
    --at_once;
    return OkStatus();
  });
  EXPECT_TRUE(fan_out.Run(calls).ok());
  EXPECT_EQ(most, 4) << "three helpers, and the thread that asks";
}

TEST(FanOutTest, ABigBatchDoesNotHoldUpASmallOne) {
  FanOut fan_out(2);
  std::atomic<bool> small_done = false;
  std::atomic<int> big_after_small = 0;
  const std::vector<std::function<Status()>> big(300, [&] {
    std::this_thread::sleep_for(milliseconds(1));
    if (small_done) ++big_after_small;
    return OkStatus();
  });
  std::thread first([&] { EXPECT_TRUE(fan_out.Run(big).ok()); });
  std::this_thread::sleep_for(milliseconds(5));
  const std::vector<std::function<Status()>> small(6, [] { return OkStatus(); });
  EXPECT_TRUE(fan_out.Run(small).ok());
  small_done = true;
  first.join();
  EXPECT_GT(big_after_small, 100);
}

}  // namespace
}  // namespace meshtrain::control
