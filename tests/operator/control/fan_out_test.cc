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
  // So many that they would take half a minute, all of them.
  const std::vector<std::function<Status()>> calls(100000, [&] {
    const int number = made++;
    if (number == 10) return Aborted("x");
    if (number > 10) std::this_thread::sleep_for(milliseconds(1));
    return OkStatus();
  });
  EXPECT_EQ(fan_out.Run(calls).code(), StatusCode::kAborted);
  EXPECT_LT(made, 100000);
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
  std::atomic<int> begun = 0;
  std::atomic<bool> small_done = false;
  // From its 20th on each waits for the small batch; in vain where that waits for the big one.
  const std::vector<std::function<Status()>> big(300, [&] {
    if (++begun < 20) return OkStatus();
    for (int i = 0; i < 60000 && !small_done; ++i) std::this_thread::sleep_for(milliseconds(1));
    return small_done ? OkStatus() : Aborted("the small batch is held up");
  });
  std::thread first([&] { EXPECT_EQ(fan_out.Run(big), OkStatus()); });
  while (begun < 20) std::this_thread::sleep_for(milliseconds(1));
  const std::vector<std::function<Status()>> small(6, [] { return OkStatus(); });
  EXPECT_TRUE(fan_out.Run(small).ok());
  small_done = true;
  first.join();
}

}  // namespace
}  // namespace meshtrain::control
