#include "operator/control/work_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/fake_clock.h"

namespace meshtrain::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeClock;

TEST(WorkQueueTest, HoldsAKeyOnceAndServesInOrder) {
  FakeClock clock;
  WorkQueue queue(clock);
  queue.Add("a");
  queue.Add("b");
  queue.Add("a");
  EXPECT_EQ(queue.depth(), 2);
  EXPECT_EQ(queue.Take({}), "a");
  EXPECT_EQ(queue.Take({}), "b");
  EXPECT_EQ(queue.depth(), 0);
}

TEST(WorkQueueTest, GivesAKeyToOneThreadAtATime) {
  FakeClock clock;
  WorkQueue queue(clock);
  queue.Add("a");
  ASSERT_EQ(queue.Take({}), "a");
  queue.Add("a");
  EXPECT_EQ(queue.depth(), 0) << "it is being worked on";
  queue.Add("b");
  EXPECT_EQ(queue.Take({}), "b");
  queue.Done("a");
  EXPECT_EQ(queue.Take({}), "a");
  queue.Done("a");
  queue.Done("b");
  EXPECT_TRUE(queue.idle());
}

TEST(WorkQueueTest, DelaysAndKeepsTheEarliest) {
  FakeClock clock;
  WorkQueue queue(clock);
  queue.AddAfter("a", seconds(10));
  queue.AddAfter("a", seconds(3));
  queue.AddAfter("a", seconds(20));
  queue.AddAfter("b", seconds(1));
  EXPECT_EQ(queue.delayed(), 2);
  clock.Advance(seconds(4));
  EXPECT_EQ(queue.Take({}), "b");
  EXPECT_EQ(queue.Take({}), "a");
  EXPECT_EQ(queue.delayed(), 0);
}

TEST(WorkQueueTest, BacksOffPerKeyUntilForgotten) {
  FakeClock clock;
  WorkQueue queue(clock);
  const auto wait = [&](const std::string& key) {
    queue.AddRateLimited(key);
    int ms = 0;
    while (queue.depth() == 0 && queue.delayed() > 0) {
      std::stop_source now;
      now.request_stop();
      clock.Advance(milliseconds(1));
      ++ms;
      queue.Add("tick");  // Take promotes what is due
      queue.Take({});
      queue.Done("tick");
      if (ms > 20000) break;
    }
    queue.Take({});
    queue.Done(key);
    return ms;
  };
  const int first = wait("a"), second = wait("a"), third = wait("a");
  EXPECT_NEAR(first, 5, 2);
  EXPECT_NEAR(second, 10, 2);
  EXPECT_NEAR(third, 20, 2);
  EXPECT_NEAR(wait("b"), 5, 2);
  queue.Forget("a");
  EXPECT_NEAR(wait("a"), 5, 2);
}

TEST(WorkQueueTest, LimitsAllFailuresTogether) {
  FakeClock clock;
  WorkQueue queue(clock);
  for (int i = 0; i < 200; ++i) queue.AddRateLimited("k" + std::to_string(i));
  clock.Advance(seconds(1));
  queue.Add("x");
  queue.Take({});
  // 100 at once, then ten a second.
  EXPECT_NEAR(static_cast<double>(queue.delayed()), 90, 2);
}

TEST(WorkQueueTest, WakesAWaitingThreadForAnEarlierTimer) {
  WorkQueue queue(SystemClock());
  queue.AddAfter("late", seconds(100));
  std::string got;
  std::thread taker([&] { got = queue.Take({}).value_or(""); });
  queue.AddAfter("soon", milliseconds(10));
  taker.join();
  EXPECT_EQ(got, "soon");
}

TEST(WorkQueueTest, EndsWaitingOnStop) {
  WorkQueue queue(SystemClock());
  std::stop_source stop;
  std::thread taker([&] { EXPECT_EQ(queue.Take(stop.get_token()), std::nullopt); });
  stop.request_stop();
  taker.join();
}

TEST(WorkQueueTest, LosesNothingBetweenManyThreads) {
  WorkQueue queue(SystemClock());
  std::atomic<int> taken = 0;
  std::atomic<int> at_once[8] = {};
  std::stop_source stop;
  {
    std::vector<std::jthread> takers;
    for (int t = 0; t < 4; ++t) {
      takers.emplace_back([&] {
        while (const auto key = queue.Take(stop.get_token())) {
          const int k = (*key)[0] - '0';
          EXPECT_EQ(++at_once[k], 1);
          ++taken;
          --at_once[k];
          queue.Done(*key);
        }
      });
    }
    for (int i = 0; i < 4000; ++i) queue.Add(std::to_string(i % 8));
    while (!queue.idle()) std::this_thread::yield();
    stop.request_stop();
  }
  EXPECT_GE(taken, 8);
}

}  // namespace
}  // namespace meshtrain::control
